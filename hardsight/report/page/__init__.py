"""What all pages share: templates, numbers as text, and the file on disk."""

from hardsight.report.page._groups import group_view as group_view
from hardsight.report.page._page import MINUS as MINUS
from hardsight.report.page._page import NONE as NONE
from hardsight.report.page._page import Record as Record
from hardsight.report.page._page import count as count
from hardsight.report.page._page import filled as filled
from hardsight.report.page._page import number as number
from hardsight.report.page._page import page_file as page_file
from hardsight.report.page._page import percent as percent
from hardsight.report.page._page import plural as plural
from hardsight.report.page._page import replace_page as replace_page
