"""One way to refuse a field's value."""


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raises a ValueError that names the field, its value and the rule, unless `condition` holds."""
    if not condition:
        raise ValueError(f"{key} is {value!r}, but it must be {rule}")
