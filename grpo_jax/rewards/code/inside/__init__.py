"""What runs inside the sandboxes. Each file is sent there as code, so it imports only its neighbours and, at the start, as
little of the standard library as it can: the interpreter's start is most of what a judgement costs."""

__all__: list[str] = []
