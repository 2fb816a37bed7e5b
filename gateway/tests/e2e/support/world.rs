//! kas and agentk, connected.

use std::{
    fs,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret as _, SecretString};
use tempfile::TempDir;

use super::{
    Agent, AgentOptions, Certificates, Kas, KasOptions, Kubectl, Reply, Tokens, curl, eventually,
    kas::bearer, kubeconfig,
};

/// The name of the agent that the tests start; its id is 7.
pub(crate) const AGENT: &str = "prod";

/// One kas, one agentk and everything that they were given.
pub(crate) struct World {
    /// The server.
    pub(crate) kas: Kas,
    /// How it was started.
    pub(crate) options: KasOptions,
    /// The agent.
    pub(crate) agent: Agent,
    /// How it was started.
    pub(crate) agent_options: AgentOptions,
    /// Who may connect.
    pub(crate) tokens: Tokens,
    directory: TempDir,
}

impl World {
    /// For kubectl: callers speak TLS, agents do not.
    pub(crate) fn of_cluster(kubeconfig: &Path) -> Self {
        Self::start(kubeconfig, |options, certificates| options.public_tls = Some(certificates))
    }

    /// For Prometheus, or what is to be taken for it: nobody speaks TLS, and there is no cluster.
    pub(crate) fn of_prometheus(url: &str) -> Self {
        Self::assemble(None, Some(url), |_, _| {})
    }

    /// The same, and both programs send traces to a collector.
    pub(crate) fn traced(url: &str, collector: &str) -> Self {
        Self::assemble(None, Some(url), |options, _| options.collector = Some(collector.to_owned()))
    }

    /// The cluster of the agent cannot be reached.
    pub(crate) fn without_cluster(choose: impl FnOnce(&mut KasOptions, Certificates)) -> Self {
        Self::assemble(None, None, choose)
    }

    /// With options, which may use certificates.
    pub(crate) fn start(kubeconfig: &Path, choose: impl FnOnce(&mut KasOptions, Certificates)) -> Self {
        Self::assemble(Some(kubeconfig), None, choose)
    }

    fn assemble(
        kubeconfig: Option<&Path>,
        prometheus: Option<&str>,
        choose: impl FnOnce(&mut KasOptions, Certificates),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::make();
        tokens.write_identity(directory.path(), false);
        let mut options = KasOptions { shutdown_grace: 30, ..KasOptions::default() };
        choose(&mut options, Certificates::make(directory.path()));
        fs::write(directory.path().join("collector-token"), "collect\n").unwrap();
        let kas = Kas::start(directory.path(), &options);
        let agent_options = AgentOptions {
            kas: kas.agent_url(&options),
            kas_authority: options.agent_tls.as_ref().map(|tls| tls.authority.clone()),
            token: tokens.agent.expose_secret().to_owned(),
            kubeconfig: kubeconfig.map_or_else(|| unreachable_cluster(directory.path()), Path::to_owned),
            prometheus: prometheus.map(str::to_owned),
            policy: None,
            collector: options.collector.clone(),
            tunnels: 2,
            grace: 25,
            network: None,
        };
        let agent = Agent::start(directory.path(), &agent_options);
        eventually("the tunnels are open", || kas.metric("kas_tunnels") == 2.0);
        Self { kas, options, agent, agent_options, tokens, directory }
    }

    /// Puts a policy in force: that of another agentk, or a new version of the one that it has.
    pub(crate) fn put_policy(&mut self, text: &str) {
        let file = self.directory().join("policy.yaml");
        // Replaced in one step, as operators should.
        let new = self.directory().join("policy.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &file).unwrap();
        if self.agent_options.policy.is_none() {
            self.agent_options.policy = Some(file);
            self.agent.process.terminate();
            self.agent.process.exit_code();
            self.restart_agent();
        }
    }

    /// Starts another agentk in the place of the one that ran.
    pub(crate) fn restart_agent(&mut self) {
        self.agent = Agent::start(self.directory(), &self.agent_options);
        eventually("the tunnels are open", || self.kas.metric("kas_tunnels") == 2.0);
    }

    /// Starts another kas, where agents look for it.
    pub(crate) fn restart_kas(&mut self) {
        self.options.agent_port = self.kas.agents.port();
        self.kas = Kas::start(self.directory.path(), &self.options);
    }

    /// Where its files are.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// kubectl of a caller who acts as the agent, at the path that names the agent.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.kubectl_as("tunnel", &format!("/agents/{AGENT}/kubernetes"), &self.tokens.ops, "")
    }

    /// The same at GitLab's path, where the credential names the agent.
    pub(crate) fn kubectl_in_ci(&self) -> Kubectl {
        self.kubectl_as("tunnel-ci", "/k8s-proxy", &self.tokens.ops, "ci:7:")
    }

    /// kubectl of alice.
    pub(crate) fn kubectl_of_alice(&self) -> Kubectl {
        self.kubectl_as("alice", &format!("/agents/{AGENT}/kubernetes"), &self.tokens.alice, "")
    }

    /// kubectl of somebody who reaches for another agent.
    pub(crate) fn kubectl_of_agent(&self, agent: &str) -> Kubectl {
        self.kubectl_as("other-agent", &format!("/agents/{agent}/kubernetes"), &self.tokens.ops, "")
    }

    fn kubectl_as(&self, name: &'static str, path: &str, token: &SecretString, prefix: &str) -> Kubectl {
        let file = self.directory().join(format!("kubeconfig-{name}"));
        let token = format!("{prefix}{}", token.expose_secret());
        let file = kubeconfig::write(file, &self.kas.url(path), self.kas.authority(), &token);
        Kubectl::new(name, path, file, self.directory())
    }

    /// Asks kas for a path, as a caller who acts as the agent.
    pub(crate) fn curl(&self, path: &str, arguments: &[&str]) -> Reply {
        self.curl_as(&self.tokens.ops, path, arguments)
    }

    /// Asks kas for a path.
    pub(crate) fn curl_as(&self, token: &SecretString, path: &str, arguments: &[&str]) -> Reply {
        let (url, authorization) = (self.kas.url(path), bearer(token));
        let authority = self.kas.authority().map(|file| file.to_str().unwrap().to_owned());
        let mut all = vec!["--header", &authorization, &url];
        if let Some(authority) = &authority {
            all.extend(["--cacert", authority]);
        }
        all.extend(arguments);
        curl(&all)
    }

    /// Requests whose answer has not ended.
    pub(crate) fn in_flight(&self) -> f64 {
        self.kas.metric("kas_requests_in_flight")
    }
}

/// The kubeconfig of a cluster that refuses connections.
pub(super) fn unreachable_cluster(directory: &Path) -> PathBuf {
    // Port 1 (tcpmux) is served nowhere, and needs privileges to be taken.
    kubeconfig::write(directory.join("unreachable"), "https://127.0.0.1:1", None, "none")
}
