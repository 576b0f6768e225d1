"""Drawings: axes and charts as places on a page, and matplotlib figures in one style."""

from hardsight.report.figures._chart import Axis as Axis
from hardsight.report.figures._chart import Bars as Bars
from hardsight.report.figures._chart import Chart as Chart
from hardsight.report.figures._chart import Cloud as Cloud
from hardsight.report.figures._chart import Line as Line
from hardsight.report.figures._chart import Mark as Mark
from hardsight.report.figures._chart import Tick as Tick
from hardsight.report.figures._chart import axis_for as axis_for
from hardsight.report.figures._plots import COLOURS as COLOURS
from hardsight.report.figures._plots import density as density
from hardsight.report.figures._plots import legend as legend
from hardsight.report.figures._plots import panels as panels
from hardsight.report.figures._plots import save as save
