"""The control side: run control, launchers, machine checks and peak measurements."""
