//! The text that the demo prints: its first response, and commands to try.

use std::{io::Write as _, net::SocketAddr};

use super::{DemoCluster, DemoFiles, files::AGENT};

/// The values of the text.
pub(super) struct NextSteps<'a> {
    pub(super) files: &'a DemoFiles,
    pub(super) cluster: &'a DemoCluster,
    pub(super) public: SocketAddr,
    pub(super) prometheus: bool,
}

impl NextSteps<'_> {
    pub(super) fn print(&self, first_answer: &str) -> std::io::Result<()> {
        let cluster = match self.cluster {
            DemoCluster::Real { what } => format!("your cluster ({what})"),
            DemoCluster::Simulated(_) => {
                "a SIMULATED cluster (there is no real one in your kubeconfig)".to_owned()
            }
        };
        let (public, token) = (self.public, self.files.caller_token());
        let directory = self.files.path("");
        let directory = directory.display();
        let mut out = std::io::stdout().lock();
        write!(
            out,
            "\n\
             kas and agentk are running. agentk opened two tunnels to kas, and kas can now send requests\n\
             into {cluster}, which needs no inbound connection.\n\
             \n\
             The first request went through:\n  {first_answer}\n\
             \n\
             kubectl and helm:\n\
             \n  export KUBECONFIG={directory}kubeconfig\n  kubectl get pods -A\n",
        )?;
        if matches!(self.cluster, DemoCluster::Simulated(_)) {
            write!(
                out,
                "  kubectl -n demo logs -f deploy/web\n  kubectl -n demo exec -it deploy/web -- echo hello\n\
                 \x20 kubectl -n demo scale deploy/web --replicas=5 && kubectl -n demo get pods -w\n"
            )?;
        }
        write!(
            out,
            "\n\
             curl:\n\
             \n  curl --cacert {directory}kas.crt -H 'Authorization: Bearer {token}' \\\n    \
             https://{public}/agents/{AGENT}/kubernetes/version\n"
        )?;
        if self.prometheus {
            write!(
                out,
                "  curl --cacert {directory}kas.crt -H 'Authorization: Bearer {token}' \\\n    \
                 'https://{public}/agents/{AGENT}/prometheus/api/v1/query?query=up'\n\
                 \n\
                 Grafana: add a Prometheus data source with\n\
                 \n  URL       https://{public}/agents/{AGENT}/prometheus\n  Basic auth, user 'you', password {token}\n  \
                 CA cert   {directory}kas.crt\n"
            )?;
        } else {
            write!(
                out,
                "\n\
                 PromQL: run again with `target/debug/loadtest demo --prometheus-url http://…` to reach a Prometheus server.\n"
            )?;
        }
        write!(out, "\nConfiguration, identity and logs are in {directory}. Ctrl-C stops everything.\n")?;
        out.flush()
    }
}
