"""The names that `import rnnewton as rn` offers, and that the import itself is cheap."""

import subprocess
import sys

import rnnewton as rn


def test_every_public_name_is_there():
    for name in rn.__all__:
        assert getattr(rn, name) is not None
    assert set(rn.__all__) == set(dir(rn))


def test_importing_imports_no_torch():
    code = "import sys, rnnewton; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
