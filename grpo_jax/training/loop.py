"""The training loop: SFT, test, GRPO, test; checkpoints, log and progress on the way; resumable at every step.

Everything that a step draws is keyed by the seed and the step, so a run's whole state is its arrays and its `Position`.
A run killed at any moment goes on from its last checkpoint and ends with the parameters that it would have had.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, Literal

import jax

from grpo_jax.checkpoint import RunCheckpoints
from grpo_jax.data import JsonlTask, advance, fingerprint, observe
from grpo_jax.evaluation.scores import Scores, from_record, to_metrics
from grpo_jax.parallel import ensure_devices, gathered, is_first, place, replicated, start_hosts, to_host, together
from grpo_jax.training.alarm_log import alarm_metrics, append_alarm, remove_alarms_after
from grpo_jax.training.compile_clock import CompileClock
from grpo_jax.training.config import RunConfig
from grpo_jax.training.controls import Controls
from grpo_jax.training.experiment import Experiment, build_experiment
from grpo_jax.training.failure_log import append_failures, failure_records, remove_failures_after
from grpo_jax.training.grpo import grpo_iteration, read_samples
from grpo_jax.training.interruption import Interruption
from grpo_jax.training.memory import memory_metrics
from grpo_jax.training.metrics_log import open_log
from grpo_jax.training.monitor import Alarm, Monitor
from grpo_jax.training.phase_clock import PhaseClock
from grpo_jax.training.plots import write_plots
from grpo_jax.training.position import Position, TrainingPhase
from grpo_jax.training.progress import Progress
from grpo_jax.training.rows import Rows
from grpo_jax.training.rules import check
from grpo_jax.training.run_directory import RunDirectory, open_run
from grpo_jax.training.samples import remove_samples_after, write_samples
from grpo_jax.training.schema import ConfigError
from grpo_jax.training.sft import grpo_seed, sft_batch, sft_seed
from grpo_jax.training.state import TrainState
from grpo_jax.training.steps import sft_step
from grpo_jax.training.summary import Status, Summary, summarize
from grpo_jax.types import Params


class Interrupted(Exception):
    """A signal or an alarm asked the run to stop; its state is saved. The message says how to go on."""


def train(config: RunConfig, *, resume: bool = False) -> Summary:
    """Runs what `config` describes in its run directory; returns what summary.json holds.

    Args:
      config: the run.
      resume: go on with the run in `config.run_dir` rather than begin one.

    Raises:
      ConfigError: the run cannot be begun or resumed as configured.
      CheckpointError: a checkpoint cannot be written or read; what was saved before is intact.
      Interrupted: SIGTERM, Ctrl-C, or an alarm with the action stop; the state was saved first.
    """
    check(config)
    try:
        start_hosts(config.hosts)
        note = ensure_devices(config.mesh_shape, config.hosts)
        with together():
            experiment = build_experiment(config if is_first() else _silent(config))
            experiment.reward.check()
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(experiment.reward.close)
        directory = stack.enter_context(open_run(config, resume=resume))
        shown_on = None if is_first() else stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        progress = stack.enter_context(Progress(shown_on))
        interruption = stack.enter_context(Interruption())
        compiles = stack.enter_context(CompileClock())
        checkpoints = stack.enter_context(RunCheckpoints(directory.checkpoints, keep=config.checkpoint.keep))
        if note:
            progress.note(note)
        progress.note(f"writing to {config.run_dir}")
        if isinstance(experiment.task, JsonlTask) and (left_out := str(experiment.task.counts)):
            progress.note(f"{experiment.task.source}: {left_out}")
        run = _Run(experiment, directory, progress, checkpoints, interruption, compiles)
        stack.callback(run.close)
        try:
            run.go_on()
        except Interrupted:
            with together():
                run.report("interrupted")
            raise
        with together():
            summary = run.report("finished")
        progress.results(summary.after_sft, summary.after_grpo)
        progress.note(
            f"{config.run_dir} holds the summary, plots and samples; `grpo export {config.run_dir} --output DIR` writes the "
            "parameters alone"
        )
        return summary


def _silent(config: RunConfig) -> RunConfig:
    """The run as a process goes through it that writes nothing for people."""
    nothing = dataclasses.replace(config.logging, samples_every=0, tensorboard=False, plots=False)
    return dataclasses.replace(config, logging=nothing)


class _Run:
    """A run in progress: its arrays, its position, and where it writes."""

    def __init__(
        self,
        experiment: Experiment,
        directory: RunDirectory,
        progress: Progress,
        checkpoints: RunCheckpoints,
        interruption: Interruption,
        compiles: CompileClock,
    ) -> None:
        self.experiment, self.policy, self.config = experiment, experiment.policy, experiment.config
        self.directory, self.progress, self.checkpoints = directory, progress, checkpoints
        self.interruption, self.compiles = interruption, compiles
        self.reference: Params | None = None
        self.replay: Rows | None = None
        self.monitor = Monitor(self.config.monitor)
        self.fingerprints = {
            "tokenizer": self.policy.tokenizer.fingerprint(),
            "data": fingerprint(experiment.task),
        }
        if any(others != self.fingerprints for others in gathered(self.fingerprints)):
            raise ConfigError(
                "data: the tokenizer and the list of problems must be the same on every host, but a file of theirs is "
                "another one somewhere. Copy the files of one host to the others"
            )
        self._restore()
        self.log = open_log(
            directory.metrics,
            tensorboard=directory.tensorboard if self.config.logging.tensorboard else None,
            keep_through=self.total_step if checkpoints.latest_step() is not None else None,
        )

    @property
    def total_step(self) -> int:
        """Steps of both phases done; what checkpoints are numbered by."""
        return self.position.step + (self.config.sft.steps if self.position.phase == "grpo" else 0)

    def close(self) -> None:
        self.log.close()

    def report(self, status: Status) -> Summary:
        """Writes the summary and the plots of what has happened so far."""
        parameters = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))
        summary = summarize(self.config, self.log.records(), status=status, parameters=parameters)
        if is_first():
            summary.write(self.directory.summary)
        if self.config.logging.plots:
            write_plots(self.directory.plots, self.log.records())
        return summary

    def go_on(self) -> None:
        """From wherever the run stands to its end."""
        config = self.config
        if self.position.phase == "sft":
            self._train_sft()
            # Before a test, which can take minutes, so that no signal finds the phase unsaved.
            self._save_if_new()
            self._begin_grpo()
        if self.position.step == 0:
            self._test("evaluation", 0)
        if config.grpo.steps:
            self._train_grpo()
            self._save_if_new()
            self._test("evaluation", config.grpo.steps)
        self._save_if_new()
        self.checkpoints.wait()

    def scores(self, step: int, phase: Literal["sft_evaluation", "evaluation"] = "evaluation") -> Scores | None:
        """The test after so many steps of its phase, or None if it was not made."""
        for record in reversed(self.log.records(phase)):
            if record["step"] == step:
                return from_record(record)
        return None

    # State

    def _start(self, phase: TrainingPhase) -> Position:
        stages = self.experiment.task.stages
        tokenizer, data = self.fingerprints["tokenizer"], self.fingerprints["data"]
        if phase == "sft" or self.config.grpo.steps == 0:
            return Position.start(phase, stages, tokenizer=tokenizer, data=data)
        return Position.start(
            phase,
            stages,
            tokenizer=tokenizer,
            data=data,
            has_reference=self.policy.needs_reference,
            controls=Controls.start(self.config).to_json(),
            replay_components=list(self.experiment.reward.weights) if self.policy.has_replay else None,
        )

    def _restore(self) -> None:
        """The arrays and the position of the last checkpoint, or those of the beginning."""
        if self.checkpoints.latest_step() is None:
            if self.directory.metrics.exists():
                self.progress.note("no step of this run was saved: it begins again")
            self._forget_after(0)
            self.state = TrainState.create(self.policy.initial_params(), self.policy.sft_step_config)
            self.position = self._start("sft")
            if self.config.sft.steps == 0:
                self._begin_grpo()
            return
        try:
            position = Position.from_json(self.checkpoints.read_host())
        except ValueError as error:
            raise ConfigError(str(error)) from error
        for part, what in (("tokenizer", "tokenizer"), ("data", "list of problems")):
            if getattr(position, part) != self.fingerprints[part]:
                raise ConfigError(
                    f"data: this {what} is another one than the checkpoint's parameters were trained with; its file has "
                    "changed since. Restore the file, or begin a new run with another --run_dir"
                )
        restored = self.checkpoints.restore(self.policy.abstract_arrays(position)).state
        self.state, self.reference, self.position = restored["train"], restored.get("reference"), position
        self.replay = None if position.replay_components is None else to_host(restored["replay"])
        if position.controls:
            self._set_temperature()
        self._forget_after(position.step if position.phase == "grpo" else 0)
        if position.phase == "grpo" and position.step > self.config.grpo.steps:
            raise ConfigError(
                f"grpo.steps is {self.config.grpo.steps}, but the run to resume has done {position.step} already. Set it to "
                f"{position.step} or more"
            )
        if position.phase == "grpo" and not position.controls and self.config.grpo.steps:
            # A run of SFT alone that goes on with GRPO now.
            self._begin_grpo()

    def _forget_after(self, step: int) -> None:
        """Deletes what was written of later GRPO steps, which are done over again."""
        if is_first():
            remove_samples_after(self.directory.samples, step)
            remove_alarms_after(self.directory.alarms, step)
            remove_failures_after(self.directory.reward_failures, step)

    def _begin_grpo(self) -> None:
        """A new optimizer for the policy, and a frozen copy of it as the reference."""
        params = self.state.params
        if self.policy.needs_reference:
            self._refresh_reference()
        self.state = TrainState.create(params, self.policy.grpo_step_config)
        self.position = self._start("grpo")
        if self.position.replay_components is not None:
            self.replay = self.policy.empty_replay(self.position.replay_components)

    def _refresh_reference(self) -> None:
        # A copy of its own: the step donates the policy's buffers.
        self.reference = jax.tree.map(lambda leaf: leaf.copy(), self.state.params)

    @property
    def controls(self) -> Controls:
        """Coefficients, reward weights and temperature as they stand."""
        return Controls.from_json(self.position.controls)

    def _set_temperature(self) -> None:
        """Scores the policy at the temperature that is sampled at now."""
        step_config = dataclasses.replace(
            self.policy.grpo_step_config, temperature=self.controls.sampler(self.config).temperature
        )
        self.state = dataclasses.replace(self.state, config=step_config)

    def _save(self) -> None:
        arrays: dict[str, Any] = {"train": self.state}
        if self.position.has_reference:
            arrays["reference"] = self.reference
        if self.replay is not None:
            sharding = None if self.policy.mesh is None else replicated(self.policy.mesh)
            arrays["replay"] = jax.tree.map(lambda values: place(values, sharding), self.replay)
        self.checkpoints.save(self.total_step, arrays, self.position.to_json())

    def _save_if_new(self) -> None:
        if self.total_step > 0 and self.checkpoints.latest_step() != self.total_step:
            self._save()

    def _after_step(self, alarm: Alarm | None = None) -> None:
        """Saves when it is time to; stops when a signal or an alarm asked for it."""
        every = self.config.checkpoint.every
        due = every > 0 and self.total_step % every == 0
        stop = self.interruption.agreed()
        if due or stop or alarm:
            self._save()
        if stop or alarm:
            self.checkpoints.wait()
            by = stop.name if stop else f"the alarm {alarm.name}" if alarm else ""
            advice = f" {alarm.advice}" if alarm and not stop else ""
            raise Interrupted(
                f"stopped by {by} after step {self.total_step}, which is saved.{advice} Go on with --resume "
                f"(--run_dir {self.config.run_dir})"
            )

    # Phases

    def _train_sft(self) -> None:
        config, experiment = self.config, self.experiment
        self.progress.begin("sft", config.sft.steps, self.position.step)
        batch = sft_batch(experiment, self.position.curriculum, self.position.step)
        while self.position.step < config.sft.steps:
            clock = PhaseClock(self.compiles)
            with clock("sft") as results:
                self.state, metrics = sft_step(self.state, batch)
                # The next batch is made while the device works on this one.
                batch = sft_batch(experiment, self.position.curriculum, self.position.step + 1)
                results.append(metrics)
            self.position = self.position.after_step()
            step = self.position.step
            metrics = jax.device_get(metrics) | clock.metrics() | memory_metrics()
            metrics["tokens_per_second"] = metrics["tokens"] / clock.seconds["sft"]
            self.progress.step(step, self.log.write("sft", step, self.total_step, metrics))
            every = config.evaluation.sft_every
            if every and step % every == 0:
                scores = self._test("sft_evaluation", step)
                if self._advance(scores, config.sft.rows, sft_seed(config.seed)):
                    batch = sft_batch(experiment, self.position.curriculum, step)
            self._after_step()
        self.progress.end()

    def _train_grpo(self) -> None:
        config, experiment = self.config, self.experiment
        self.progress.begin("grpo", config.grpo.steps, self.position.step)
        while self.position.step < config.grpo.steps:
            clock = PhaseClock(self.compiles)
            controls = self.controls
            self.state, outcome = grpo_iteration(
                experiment,
                self.state,
                self.reference,
                self.position.curriculum,
                self.position.step,
                clock,
                controls,
                self.replay,
            )
            self.replay = outcome.replay
            curriculum = observe(
                experiment.task,
                config.data.curriculum,
                self.position.curriculum,
                *outcome.observed(config.grpo.group_size),
                draws=(self.position.step + 1) * config.grpo.prompts,
                seed=grpo_seed(config.seed),
            )
            self.position = self.position.after_step().with_curriculum(curriculum)
            step = self.position.step
            metrics = outcome.metrics | clock.metrics() | memory_metrics()
            working = sum(seconds for phase, seconds in clock.seconds.items() if phase != "compile")
            metrics["tokens_per_second"] = metrics["completion_tokens"] / working
            alarms = self.monitor.check([*self.log.records("grpo"), self.log.plain(metrics) | {"step": step}])
            record = self.log.write("grpo", step, self.total_step, metrics | alarm_metrics(alarms))
            self.position = self.position.with_controls(controls.after_step(config, self.log.plain(metrics)).to_json())
            stop = self._act_on(alarms)
            self.progress.step(step, record)
            if config.grpo.kl.refresh_every and step % config.grpo.kl.refresh_every == 0:
                self._refresh_reference()
            if is_first():
                failures = failure_records(step, outcome.sampled.results, outcome.sampled.inputs)
                append_failures(self.directory.reward_failures, failures)
            every = config.logging.samples_every
            if every and (step % every == 0 or step == 1):
                samples = read_samples(experiment, outcome, config.logging.samples_groups)
                write_samples(self.directory.samples, step, samples)
            every = config.evaluation.every
            if every and step % every == 0 and step < config.grpo.steps:
                self._advance(self._test("evaluation", step), config.grpo.prompts, grpo_seed(config.seed))
            self._after_step(stop)
        self.progress.end()

    def _act_on(self, alarms: list[Alarm]) -> Alarm | None:
        """Says what the monitor found and does what `on_alarm` asks for; the alarm that asks to stop, if one does."""
        stop = None
        for alarm in alarms:
            action = self.config.alarm_actions.get(alarm.name)
            self.progress.alarm(alarm.name, f"{alarm.message} {alarm.advice}", action)
            if is_first():
                append_alarm(self.directory.alarms, alarm, action)
            if action == "stop":
                stop = alarm
            elif action is not None:
                controls = self.controls.after_alarm(action)
                if controls.temperature_factor != self.controls.temperature_factor and self.position.replay_components:
                    # Log-probs at another temperature do not compare.
                    self.replay = self.policy.empty_replay(self.position.replay_components)
                self.position = self.position.with_controls(controls.to_json())
                self._set_temperature()
        return stop

    def _advance(self, scores: Scores, problems_per_step: int, seed: int) -> bool:
        """Moves the curriculum on where the test of its current stage says so; whether it did."""
        position = self.position
        accuracy = {stage: score.sampled_accuracy for stage, score in scores.items()}
        draws = position.step * problems_per_step
        curriculum = advance(self.config.data.curriculum, position.curriculum, accuracy, draws, seed)
        if curriculum is position.curriculum:
            return False
        self.progress.note(f"curriculum: stage {self.experiment.task.stages[curriculum['level']]} begins")
        self.position = position.with_curriculum(curriculum)
        return True

    def _test(self, phase: Literal["sft_evaluation", "evaluation"], step: int) -> Scores:
        """The held-out test after `step` steps of SFT or GRPO; taken from the log if it was made before an interruption."""
        if (scores := self.scores(step, phase)) is not None:
            return scores
        if phase == "evaluation" and step in (0, self.config.grpo.steps):
            # No bar is shown here, and with a large model a test takes minutes.
            self.progress.note("held-out test: every stage, sampled and greedy ...")
        clock = PhaseClock(self.compiles)
        with clock("evaluation"):
            scores = self.experiment.heldout_test.run(self.policy.model, self.state.params, self.total_step)
        self.log.write(phase, step, self.total_step, {**to_metrics(scores), **clock.metrics(), **memory_metrics()})
        trained = "SFT" if phase == "sft_evaluation" else "GRPO"
        title = "held-out test before GRPO" if step == 0 else f"held-out test after {trained} step {step}"
        self.progress.tested(title, scores)
        return scores
