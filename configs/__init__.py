"""Run configurations in YAML: ``aiperf config show PRESET`` prints one."""
