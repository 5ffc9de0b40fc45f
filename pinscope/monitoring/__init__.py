"""PinScope's figures for Prometheus: the metrics, their server, a Grafana dashboard and alert rules."""
