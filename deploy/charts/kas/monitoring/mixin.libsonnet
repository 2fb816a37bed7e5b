// The alerts, recording rules and dashboards as a mixin: jsonnet -J vendor -e "(import 'mixin.libsonnet').prometheusAlerts"
{
  _config+:: {
    // The labels of one fleet of kas in Prometheus.
    kasSelector: 'job="kas"',
  },
  prometheusAlerts+:: std.parseYaml(std.strReplace(importstr 'rules.yaml', 'job="kas"', $._config.kasSelector)),
  grafanaDashboards+:: {
    'kas-overview.json': import 'dashboards/kas-overview.json',
    'kas-replica.json': import 'dashboards/kas-replica.json',
    'kas-agents.json': import 'dashboards/kas-agents.json',
    'agentk.json': import 'dashboards/agentk.json',
  },
}
