"""Output in a terminal: tables, consoles, a progress bar."""

from typing import TYPE_CHECKING

from ..system.lazy_import import make_lazy_getattr
from .streams import UNFOLDED, format_markdown_table, is_plain, width_of_stream

if TYPE_CHECKING:
    from .tables import WordTable, open_console, progress_bar, table_text

__all__ = [
    "UNFOLDED",
    "WordTable",
    "format_markdown_table",
    "is_plain",
    "open_console",
    "progress_bar",
    "table_text",
    "width_of_stream",
]

# What imports rich: a command that prints a few lines does without.
__getattr__ = make_lazy_getattr(
    __name__, WordTable="tables", open_console="tables", progress_bar="tables", table_text="tables"
)
