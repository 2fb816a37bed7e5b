// The alerts, recording rules and dashboards as a mixin: jsonnet -J vendor -e "(import 'mixin.libsonnet').prometheusAlerts"
{
  prometheusAlerts+:: std.parseYaml(importstr 'rules.yaml'),
  grafanaDashboards+:: {
    'kas-overview.json': import 'dashboards/kas-overview.json',
    'kas-replica.json': import 'dashboards/kas-replica.json',
    'kas-agents.json': import 'dashboards/kas-agents.json',
    'agentk.json': import 'dashboards/agentk.json',
  },
}
