"""What a model is worth beyond its accuracy: functions, each of one idea."""

from hardsight.evaluate._accuracy import SHOTS as SHOTS
from hardsight.evaluate._accuracy import accuracy as accuracy
from hardsight.evaluate._accuracy import class_accuracy as class_accuracy
from hardsight.evaluate._accuracy import shot_accuracy as shot_accuracy
from hardsight.evaluate._calibration import CalibrationBin as CalibrationBin
from hardsight.evaluate._calibration import brier_score as brier_score
from hardsight.evaluate._calibration import calibration_bins as calibration_bins
from hardsight.evaluate._calibration import calibration_error as calibration_error
from hardsight.evaluate._calibration import fitted_temperature as fitted_temperature
from hardsight.evaluate._calibration import negative_log_likelihood as negative_log_likelihood
from hardsight.evaluate._ood import INDICATORS as INDICATORS
from hardsight.evaluate._ood import Detection as Detection
from hardsight.evaluate._ood import detection as detection
from hardsight.evaluate._ood import false_positive_rate as false_positive_rate
from hardsight.evaluate._ood import ood_indicators as ood_indicators
from hardsight.evaluate._attacks import Normalisation as Normalisation
from hardsight.evaluate._attacks import fgsm as fgsm
from hardsight.evaluate._attacks import pgd as pgd
