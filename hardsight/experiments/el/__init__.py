"""Tables and figures of Encouraging Loss, and what they train."""

from hardsight.experiments.el._attacks import Attacked as Attacked
from hardsight.experiments.el._combine import el_combine as el_combine
from hardsight.experiments.el._fig5 import el_fig5 as el_fig5
from hardsight.experiments.el._fig6 import el_fig6 as el_fig6
from hardsight.experiments.el._fig7 import el_fig7 as el_fig7
from hardsight.experiments.el._fig7 import el_fig7_small as el_fig7_small
from hardsight.experiments.el._graph import compared_losses as compared_losses
from hardsight.experiments.el._graph import el_graph as el_graph
from hardsight.experiments.el._graph import made_up as made_up
from hardsight.experiments.el._graph import split_of as split_of
from hardsight.experiments.el._recipes import EXACT as EXACT
from hardsight.experiments.el._recipes import Recipe as Recipe
from hardsight.experiments.el._recipes import Task as Task
from hardsight.experiments.el._recipes import encouraging as encouraging
from hardsight.experiments.el._recipes import fitted as fitted
from hardsight.experiments.el._recipes import loss_name as loss_name
from hardsight.experiments.el._table1 import el_table1 as el_table1
from hardsight.experiments.el._table2 import el_table2 as el_table2
from hardsight.experiments.el._table3 import el_table3 as el_table3
from hardsight.experiments.el._table4 import el_table4 as el_table4
from hardsight.experiments.el._table4 import foreign_images as foreign_images
from hardsight.experiments.el._table5 import el_table5 as el_table5
