"""Query parameters: values of `{name:Type}` in SQL as text, the same for both engines."""

from collections.abc import Mapping

Parameters = Mapping[str, object]


def as_settings(params: Parameters | None) -> dict[str, str]:
    """Return the parameters as `param_<name>` settings of a session or an HTTP request."""
    if not params:
        return {}
    # importing it takes a third of a second, which `ltrain up` does not need
    from clickhouse_connect.driver.binding import format_bind_value

    return {f"param_{name}": str(format_bind_value(value)) for name, value in params.items()}
