import subprocess
import sys

PROBE = "import sys, {module}; print([m for m in ('torch', 'scipy.stats') if m in sys.modules])"


def loaded_after(module, **options):
    command = [sys.executable, "-c", PROBE.format(module=module)]
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def test_statistics_load_neither_torch_nor_scipy_until_used():
    assert loaded_after("hardsight.stats").strip() == "[]"


def test_the_probe_sees_both_when_they_are_loaded(tmp_path):
    (tmp_path / "scipy").mkdir()  # empty modules: the real ones take seconds to load
    for planted in ("torch.py", "scipy/__init__.py", "scipy/stats.py"):
        (tmp_path / planted).touch()
    found = loaded_after("torch, scipy.stats", cwd=tmp_path)
    assert found.strip() == "['torch', 'scipy.stats']"
