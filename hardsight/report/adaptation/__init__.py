"""The page of an adaptation."""

from hardsight.report.adaptation._adaptation import write_adaptation as write_adaptation
