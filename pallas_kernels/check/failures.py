"""What a row says of an exception."""

from typing import Any

from pallas_kernels.check.jobs import Job

MESSAGE_LENGTH = 300


def described(raised: Exception, job: Job) -> dict[str, Any]:
    """The row's status and message. An implementation may refuse a case (dispatch.choose); anything else is an error."""
    text = str(raised).strip()
    refusal = f"impl={job.implementation!r} does not take these arguments"
    if isinstance(raised, ValueError) and refusal in text:
        return {"status": "refused", "message": first_line(text)}
    return {"status": "error", "message": f"{type(raised).__name__}: {first_line(text)}"}


def first_line(text: str) -> str:
    line = text.splitlines()[0] if text else ""
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"
