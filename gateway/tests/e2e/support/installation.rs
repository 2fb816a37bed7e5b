//! One kas with one connected agentk, as processes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret as _, SecretString};
use tempfile::TempDir;

use super::{
    Agent, AgentOptions, Certificates, HttpResponse, Kas, KasOptions, Kubectl, Tokens,
    agent::has_gitlab_protocol, curl, default_tunnels, eventually, kas::bearer, kubeconfig,
};

/// The name of the agent that the tests start; its id is 7.
pub(crate) const AGENT: &str = "prod";

/// One kas, one agentk, and their options.
pub(crate) struct Installation {
    /// The running kas.
    pub(crate) kas: Kas,
    /// The options of kas.
    pub(crate) options: KasOptions,
    /// The running agentk.
    pub(crate) agent: Agent,
    /// The options of the agent.
    pub(crate) agent_options: AgentOptions,
    /// The tokens of the agent and of the callers.
    pub(crate) tokens: Tokens,
    directory: TempDir,
}

impl Installation {
    /// Starts both for a cluster. The public listener uses TLS, because kubectl needs it; the agent listener does not.
    pub(crate) fn with_cluster(kubeconfig: &Path) -> Self {
        Self::start(kubeconfig, |options, certificates| options.public_tls = Some(certificates))
    }

    /// Starts both for a Prometheus server, without TLS and with an unreachable cluster.
    pub(crate) fn with_prometheus(url: &str) -> Self {
        Self::assemble(None, Some(url), |_, _| {})
    }

    /// Starts both for a Prometheus server, and both export traces to a collector.
    pub(crate) fn with_traces(url: &str, collector: &str) -> Self {
        Self::assemble(None, Some(url), |options, _| options.collector = Some(collector.to_owned()))
    }

    /// Starts both with an unreachable cluster.
    pub(crate) fn without_cluster(configure: impl FnOnce(&mut KasOptions, Certificates)) -> Self {
        Self::assemble(None, None, configure)
    }

    /// Starts both for a cluster, with options that may use the certificates.
    pub(crate) fn start(kubeconfig: &Path, configure: impl FnOnce(&mut KasOptions, Certificates)) -> Self {
        Self::assemble(Some(kubeconfig), None, configure)
    }

    fn assemble(
        kubeconfig: Option<&Path>,
        prometheus: Option<&str>,
        configure: impl FnOnce(&mut KasOptions, Certificates),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let tokens = Tokens::generate();
        tokens.write_identity(directory.path(), false);
        let mut options = KasOptions { shutdown_grace: 30, ..KasOptions::default() };
        configure(&mut options, Certificates::generate(directory.path()));
        fs::write(directory.path().join("collector-token"), "collect\n").unwrap();
        let kas = Kas::start(directory.path(), &options);
        let agent_options = AgentOptions {
            kas: kas.agent_url(&options),
            kas_authority: options.agent_tls.as_ref().map(|tls| tls.authority.clone()),
            token: tokens.agent.expose_secret().to_owned(),
            kubeconfig: kubeconfig.map_or_else(|| unreachable_cluster(directory.path()), Path::to_owned),
            prometheus: prometheus.map(str::to_owned),
            hubble: None,
            policy: None,
            namespaces: None,
            require_scope: false,
            pod_namespace: None,
            collector: options.collector.clone(),
            tunnels: 2,
            grace: 25,
            network: None,
            gitlab_protocol: has_gitlab_protocol(),
            environment: Vec::new(),
        };
        let agent = Agent::start(directory.path(), &agent_options);
        eventually("the tunnels are open", || kas.metric("kas_tunnels") == default_tunnels());
        Self { kas, options, agent, agent_options, tokens, directory }
    }

    /// Writes the policy file. The first call restarts agentk with it; agentk reloads later versions.
    pub(crate) fn put_policy(&mut self, text: &str) {
        let file = self.directory().join("policy.yaml");
        // Operators should replace the file atomically, too.
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

    /// Replaces agentk by a new process, and waits for its tunnels.
    pub(crate) fn restart_agent(&mut self) {
        self.agent = Agent::start(self.directory(), &self.agent_options);
        eventually("the tunnels are open", || self.kas.metric("kas_tunnels") == default_tunnels());
    }

    /// Replaces kas by a new process with the same agent address.
    pub(crate) fn restart_kas(&mut self) {
        self.options.agent_port = self.kas.agents.port();
        self.kas = Kas::start(self.directory.path(), &self.options);
    }

    /// Returns the directory of the files.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns kubectl of the caller `ops`, at the path that names the agent.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.kubectl_with("tunnel", &format!("/agents/{AGENT}/kubernetes"), &self.tokens.ops, "")
    }

    /// Returns kubectl of the caller `ops` at GitLab's path, where the credential names the agent.
    pub(crate) fn kubectl_in_ci(&self) -> Kubectl {
        self.kubectl_with("tunnel-ci", "/k8s-proxy", &self.tokens.ops, "ci:7:")
    }

    /// Returns kubectl of the caller `alice`.
    pub(crate) fn kubectl_as_alice(&self) -> Kubectl {
        self.kubectl_with("alice", &format!("/agents/{AGENT}/kubernetes"), &self.tokens.alice, "")
    }

    /// Returns kubectl of the caller `ops` for another agent.
    pub(crate) fn kubectl_for_agent(&self, agent: &str) -> Kubectl {
        self.kubectl_with("other-agent", &format!("/agents/{agent}/kubernetes"), &self.tokens.ops, "")
    }

    /// Returns kubectl with a prefix and a token, at a path of kas.
    pub(crate) fn kubectl_with(
        &self,
        name: &'static str,
        path: &str,
        token: &SecretString,
        prefix: &str,
    ) -> Kubectl {
        let file = self.directory().join(format!("kubeconfig-{name}"));
        let token = format!("{prefix}{}", token.expose_secret());
        let file = kubeconfig::write(file, &self.kas.url(path), self.kas.authority(), &token);
        Kubectl::new(name, path, file, self.directory())
    }

    /// Requests a path from kas with the token of the caller `ops`.
    pub(crate) fn curl(&self, path: &str, arguments: &[&str]) -> HttpResponse {
        self.curl_as(&self.tokens.ops, path, arguments)
    }

    /// Requests a path from kas with a token.
    pub(crate) fn curl_as(&self, token: &SecretString, path: &str, arguments: &[&str]) -> HttpResponse {
        let (url, authorization) = (self.kas.url(path), bearer(token));
        let authority = self.kas.authority().map(|file| file.to_str().unwrap().to_owned());
        let mut all = vec!["--header", &authorization, &url];
        if let Some(authority) = &authority {
            all.extend(["--cacert", authority]);
        }
        all.extend(arguments);
        curl(&all)
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> f64 {
        self.kas.metric("kas_requests_in_flight")
    }
}

/// Writes the kubeconfig of a cluster at a URL.
pub(crate) fn kubeconfig_of(directory: &Path, url: &str) -> PathBuf {
    kubeconfig::write(directory.join("kubeconfig-cluster"), url, None, "none")
}

/// Writes the kubeconfig of a cluster that refuses connections.
pub(super) fn unreachable_cluster(directory: &Path) -> PathBuf {
    // No program listens on port 1 (tcpmux), and binding it requires privileges.
    kubeconfig::write(directory.join("unreachable"), "https://127.0.0.1:1", None, "none")
}
