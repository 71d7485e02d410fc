"""The error of a setting that cannot be met."""


class SettingError(Exception):
    """A setting that cannot be met: the field of EngineSettings, and the rest of a sentence that begins with its name.

    The message names the setting as the field does; a command line puts its own option's name in front of the reason.
    """

    def __init__(self, setting: str, reason: str):
        super().__init__(setting, reason)
        self.setting = setting
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.setting} {self.reason}"
