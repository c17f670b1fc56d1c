"""The configuration of the control socket, on which `zhc-edge status`, `reload` and `channel` reach the daemon."""

from __future__ import annotations

from pydantic import Field

from zhcedge.config.values import Flag, PathText, Section, Whole


class ControlConfig(Section):
    socket: PathText | None = Field(
        default=None,
        description="where programs of this computer reach the daemon; null is control.sock in $RUNTIME_DIRECTORY, "
        "else zhc-edge/<device>.sock in $XDG_RUNTIME_DIR, else there is none",
    )
    reboot_on_gpu_loss: Flag = Field(
        default=False,
        description="whether to ask for a reboot when a GPU that has worked does not come back; needs "
        "`systemctl enable --now zhc-edge-reboot.path`",
    )
    reload_trial_s: Whole = Field(
        default=60,
        ge=0,
        le=3600,
        description="seconds within which everything must run again after a reload, or the former configuration comes "
        "back; 0: it never does",
    )
