"""JupyterLab for the course: opens the start notebook, on any machine."""

import os
import sys

c = get_config()  # noqa: F821  Jupyter defines it

c.LabApp.default_url = "/lab/tree/notebooks/00_start.ipynb"
c.ServerApp.allow_root = True  # containers often have no other user
c.ServerApp.port_retries = 100  # the next free port where one is taken

over_ssh = "SSH_CONNECTION" in os.environ
has_display = sys.platform != "linux" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
c.ServerApp.open_browser = has_display and not over_ssh
