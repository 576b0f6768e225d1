"""Settings that are written down once, read from TOML, and overridden by ``KEY=VALUE``."""

from hardsight.config._keys import EvaluateKeys as EvaluateKeys
from hardsight.config._keys import ScoreKeys as ScoreKeys
from hardsight.config._load import FromFile as FromFile
from hardsight.config._load import check_settings as check_settings
from hardsight.config._load import config_from as config_from
from hardsight.config._load import defaults_of as defaults_of
from hardsight.config._load import fitted as fitted
from hardsight.config._load import load_config as load_config
from hardsight.config._load import setting as setting
from hardsight.config._load import toml_value as toml_value
from hardsight.config._settings import Settings as Settings
from hardsight.config._stated import Stated as Stated
from hardsight.config._stated import in_order as in_order
from hardsight.config._stated import stated_in as stated_in
