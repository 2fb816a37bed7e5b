//! The programs of a case: two replicas, an agent with one or two pods, and what is between them and the caller.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use access::token::TokenHash;
use kas_testing::gitaly::TestGitaly;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use testing::{
    gitlab::{Agent as GitLabAgent, AgentAccess, Job, StandIn, User},
    skip::{program_path, skipped},
};

use super::{
    callers::{self, APPLICATION, COOKIE, CSRF_TOKEN, JOB, PAT, USER},
    clients::Client,
    events,
    expectations::Expectation,
    fixtures::{Fixtures, Login, Place},
    proxies::{Proxy, ReverseProxy},
    requests::{self, Failure},
    support::{
        Agent, AgentOptions, Certificates, GitLab, Kas, KasOptions, LoadBalancer, Membership, Process, Redis,
        Tokens, eventually, write_secret,
    },
    values::{AgentKind, Caller, Case, Event, Name, Replica, Request, Transport},
};

/// The id of the agent in the identity file.
const IDENTITY_ID: u64 = 7;
/// The key by which kas authenticates at a receptive agent.
const KEY: &str = "e2e-0123456789abcdef0123456789abcdef";

/// Two running replicas with an agent, and the caller.
pub(crate) struct World {
    pub(crate) case: Case,
    pub(crate) place: Arc<Place>,
    /// The files of the programs.
    pub(crate) directory: TempDir,
    pub(crate) gitlab: GitLab,
    /// The replicas. The agents connect to the first one.
    pub(crate) replicas: Vec<Kas>,
    /// The index of the replica to which the caller talks.
    pub(crate) callers_replica: usize,
    /// The pods of the agent.
    pub(crate) pods: Vec<Process>,
    /// The load balancer before the listeners of agents, or before the pods of a receptive agent.
    pub(crate) balancer: LoadBalancer,
    /// The addresses behind the balancer: of replicas, or of pods.
    pub(crate) targets: Vec<SocketAddr>,
    pub(crate) client: Client,
    _gitaly: Option<TestGitaly>,
    _proxies: Vec<Proxy>,
    _redis: Redis,
}

/// Runs a case.
pub(crate) fn try_case(fixtures: &Fixtures, case: Case, expectation: Expectation) {
    let Some(started) = World::start_or_skip(fixtures, case) else { return };
    match (started, expectation) {
        (Err(output), Expectation::NoConfiguration(text)) => assert!(output.contains(text), "{output}"),
        (Err(output), _) => panic!("kas has not started: {output}"),
        (Ok(_), Expectation::NoConfiguration(text)) => panic!("kas has started without {text:?}"),
        (Ok(world), Expectation::Works) => events::try_event(&world),
        (Ok(world), Expectation::Refused(status, kind, sentence)) => {
            let failure = requests::send(&world).expect_err("the request is refused");
            failure.assert(status, kind, sentence);
        }
    }
}

impl World {
    /// Starts the programs, or skips the test if one is missing. The error is what a kas printed that has not started.
    fn start_or_skip(fixtures: &Fixtures, case: Case) -> Option<Result<Self, String>> {
        let place = fixtures.place_or_skip()?;
        let redis = Redis::or_skip()?;
        let login = if case.caller == Caller::Oidc { Some(fixtures.login_or_skip()?) } else { None };
        let prometheus =
            if case.request == Request::PromQl { Some(fixtures.prometheus_or_skip()?) } else { None };
        let directory = tempfile::tempdir().unwrap();
        let certificates = Certificates::generate(directory.path());
        let tokens = Tokens::generate();
        let gitlab = GitLab::start();
        let gitaly = (case.caller == Caller::GitLabLogin).then(|| serve_user_access(&gitlab, case));
        let gitlab_token = add_to_gitlab(&gitlab, case);
        fs::write(directory.path().join("key"), KEY).unwrap();

        let (standin, proxies) = (gitlab.standin.clone(), Vec::new());
        let mut start =
            Start { case, directory, certificates, tokens, login, standin, gitlab_token, proxies };
        let pods = case.pods();
        let (mut processes, receptive) = if case.agent == AgentKind::Receptive {
            let url = prometheus.map(|prometheus| &*prometheus.url);
            let listening: Vec<_> =
                (0..pods).map(|number| start.receptive_pod(number, &place, url)).collect();
            let addresses: Vec<_> = listening.iter().map(|(address, _)| *address).collect();
            let targets = start.behind_proxy(case.transport.proxy(), "agent-proxy", addresses)?;
            (listening.into_iter().map(|(_, process)| process).collect(), targets)
        } else {
            (Vec::new(), Vec::new())
        };
        let dialled = LoadBalancer::start(receptive.iter().copied().take(1).collect());
        let mut options = start.options(&redis, &gitlab);
        if case.agent == AgentKind::Receptive {
            options.receptive = Some(json!({"allowed_networks": ["127.0.0.0/8"]}));
        }
        start.write_identity(dialled.address);
        let mut replicas = Vec::new();
        for name in ["kas-0", "kas-1"] {
            let kas = start.directory.path().join(name);
            fs::create_dir(&kas).unwrap();
            fs::copy(start.directory.path().join("identity.yaml"), kas.join("identity.yaml")).unwrap();
            fs::write(kas.join("disabled.yaml"), "rules: []\n").unwrap();
            match Kas::try_start(&kas, &options) {
                Ok(kas) => replicas.push(kas),
                Err(output) => return Some(Err(output)),
            }
        }
        let (balancer, targets) = if case.agent == AgentKind::Receptive {
            (dialled, receptive)
        } else {
            let addresses = replicas.iter().map(|kas| kas.agents).collect();
            let targets = start.behind_proxy(case.transport.proxy(), "agent-proxy", addresses)?;
            let balancer = LoadBalancer::start(targets[..1].to_vec());
            for number in 0..pods {
                let prometheus = prometheus.map(|prometheus| prometheus.url.clone());
                processes.push(start.pod_or_skip(number, balancer.address, &place, prometheus)?);
            }
            (balancer, targets)
        };
        let holder = start.wait_for_tunnels(&replicas, pods);
        let callers_replica = if case.replica == Replica::Same { holder } else { 1 - holder };
        let listener = callers::listener(&replicas[callers_replica], case.caller);
        let front = start.behind_proxy(case.front.proxy(), "front", vec![listener])?[0];
        let client = Client::new(&start, front);
        let Start { directory, proxies, .. } = start;
        Some(Ok(Self {
            case,
            place,
            directory,
            gitlab,
            replicas,
            callers_replica,
            pods: processes,
            balancer,
            targets,
            client,
            _gitaly: gitaly,
            _proxies: proxies,
            _redis: redis,
        }))
    }

    /// Returns the replica to which the caller talks.
    pub(crate) fn kas(&self) -> &Kas {
        &self.replicas[self.callers_replica]
    }

    /// Returns the other replica.
    pub(crate) fn other_kas(&self) -> &Kas {
        &self.replicas[1 - self.callers_replica]
    }

    /// Sends the request of the case once.
    pub(crate) fn send(&self) -> Result<(), Failure> {
        requests::send(self)
    }
}

impl Case {
    /// Returns the number of pods of the agent.
    fn pods(self) -> usize {
        if self.event == Event::AgentStops { 2 } else { 1 }
    }

    /// Returns whether the tunnel has more services than that of the cluster's API: GitLab's protocol has none.
    pub(crate) fn has_services(self) -> bool {
        self.agent != AgentKind::Independent && !matches!(self.transport, Transport::Grpc | Transport::Grpcs)
    }

    /// Returns whether GitLab knows the agent.
    fn is_of_gitlab(self) -> bool {
        match self.agent {
            AgentKind::GitLab => true,
            AgentKind::Independent => self.caller.is_of_gitlab(),
            AgentKind::Identity | AgentKind::Receptive => false,
        }
    }

    /// Returns the id of the agent.
    pub(crate) fn agent_id(self) -> u64 {
        if self.is_of_gitlab() { GitLab::AGENT } else { IDENTITY_ID }
    }

    /// Returns the name with which the agent is configured.
    fn agent_name(self) -> String {
        match self.name {
            Name::Demo | Name::Id | Name::Dot => "demo".to_owned(),
            Name::Dash => "edge-berlin".to_owned(),
            Name::Long => format!("edge-{}", "0123456789".repeat(6))[..63].to_owned(),
        }
    }

    /// Returns what the path of a request has for the agent. A caller whose credential does not name the agent of GitLab writes its id, because
    /// others in other projects have its name.
    pub(crate) fn name_in_path(self) -> String {
        match self.name {
            Name::Dot => "a.b".to_owned(),
            Name::Id => self.agent_id().to_string(),
            _ if self.is_of_gitlab() && !self.caller.names_agent() => self.agent_id().to_string(),
            _ => self.agent_name(),
        }
    }
}

/// Serves the repository of the agent of GitLab, whose configuration admits the user who logs in.
fn serve_user_access(gitlab: &GitLab, case: Case) -> TestGitaly {
    let file = format!(".gitlab/agents/{}/config.yaml", case.agent_name());
    let gitaly = gitlab.serve_project(&[(&file, &callers::user_access(case.rights))]);
    let oauth = &mut gitlab.standin.state().oauth;
    oauth.applications.insert(APPLICATION.to_owned(), None);
    oauth.ids.insert("project.group/project".to_owned(), 7);
    oauth.set_access(USER, "project.group/project", 30);
    gitaly
}

/// Adds the agent, the job and the user to GitLab. Returns the token of the agent.
fn add_to_gitlab(gitlab: &GitLab, case: Case) -> String {
    let mut state = gitlab.standin.state();
    let known = &state.agents[&GitLab::AGENT];
    let (token, project) = (known.tokens[0].clone(), known.project.clone());
    state.add_agent(GitLabAgent { project, ..GitLabAgent::new(GitLab::AGENT, &case.agent_name(), &token) });
    state.add_job(JOB, Job::new(3, 142).with_agent(GitLab::AGENT, callers::ci_access(case.rights)));
    let user = User::new(5, USER).with_token(PAT).with_session(COOKIE, CSRF_TOKEN);
    state.users.push(user.with_access(GitLab::AGENT, AgentAccess::Agent));
    token
}

/// Settings and files that the programs of a case share while they start.
pub(crate) struct Start<'a> {
    pub(crate) case: Case,
    pub(crate) directory: TempDir,
    pub(crate) certificates: Certificates,
    pub(crate) tokens: Tokens,
    pub(crate) login: Option<&'a Login>,
    pub(crate) standin: StandIn,
    /// The token of the agent of GitLab.
    gitlab_token: String,
    proxies: Vec<Proxy>,
}

impl Start<'_> {
    /// Returns the options of the replicas.
    fn options(&self, redis: &Redis, gitlab: &GitLab) -> KasOptions {
        let case = self.case;
        let membership = Membership {
            redis: redis.section(),
            secret: write_secret(self.directory.path(), "secret"),
            private: "127.0.0.1".into(),
            // As the default: another replica dials a receptive agent within 3 s.
            private_grace: Some(5),
        };
        let mut gitlab = gitlab.section();
        gitlab["external_url"] = json!("https://gitlab.example.com");
        if case.caller == Caller::GitLabLogin {
            gitlab["login"] = json!({"client_id": APPLICATION});
        }
        let mut sections = vec![("gitlab", gitlab), ("disabled", json!({"file": "disabled.yaml"}))];
        if case.caller.is_of_page() {
            let mut listen = json!({"address": "127.0.0.1:0"});
            if case.front.proxy().is_none() {
                listen["certificate_file"] = json!(self.certificates.certificate);
                listen["key_file"] = json!(self.certificates.key);
            } else {
                listen["trusted_proxies"] = json!(["127.0.0.0/8"]);
            }
            sections.push(("web", json!({"listen": listen})));
        }
        if let Some(login) = self.login {
            let issuer = json!({
                "name": "op", "issuer": login.issuer, "audiences": ["native"], "groups_claim": "groups",
            });
            sections.push(("oidc", json!({"issuers": [issuer]})));
        }
        let has_tls = matches!(case.transport, Transport::Wss | Transport::Grpcs);
        KasOptions {
            public_tls: case.front.proxy().is_none().then(|| self.certificates.clone()),
            agent_tls: has_tls.then(|| self.certificates.clone()),
            max_age: (case.event == Event::Age).then_some(2),
            shutdown_grace: 30,
            membership: Some(membership),
            // A revoked job or user is noticed when the answer about it is no longer valid.
            kubernetes_api: vec![("allowed_agent_cache_ttl", json!("1s"))],
            // docs/gitlab.md advises this for agents of GitLab.
            reconnect_wait: (case.agent == AgentKind::Independent).then_some("10s"),
            sections,
            ..KasOptions::default()
        }
    }

    /// Writes the identity file: the agent, and the callers `ops` and `people`.
    pub(crate) fn write_identity(&self, dialled: SocketAddr) {
        let case = self.case;
        let token = TokenHash::of(&self.tokens.agent).to_string();
        let mut agent = json!({"id": IDENTITY_ID, "name": case.agent_name(), "tokens": [token]});
        if case.agent == AgentKind::Receptive {
            let has_tls = case.transport != Transport::Ws;
            let scheme = match case.transport {
                Transport::Grpc => "grpc",
                Transport::Grpcs => "grpcs",
                _ if has_tls => "wss",
                _ => "ws",
            };
            agent["url"] = json!(format!("{scheme}://{dialled}"));
            agent["tunnels"] = json!(1);
            agent["key_file"] = json!(self.directory.path().join("key"));
            if has_tls {
                agent["ca_file"] = json!(self.certificates.authority);
            }
        }
        // Its name must not be that of the agent of GitLab.
        if case.is_of_gitlab() {
            agent["name"] = json!("another");
        }
        let identity = json!({"agents": [agent], "callers": callers::identity(self)});
        fs::write(self.directory.path().join("identity.yaml"), identity.to_string()).unwrap();
    }

    /// Starts a proxy in front of these servers, or returns their addresses without one.
    fn behind_proxy(
        &mut self,
        proxy: Option<ReverseProxy>,
        name: &str,
        servers: Vec<SocketAddr>,
    ) -> Option<Vec<SocketAddr>> {
        let Some(proxy) = proxy else { return Some(servers) };
        let directory = self.subdirectory(name);
        let running = proxy.start_or_skip(&directory, &self.certificates, &servers)?;
        let addresses = running.addresses.clone();
        self.proxies.push(running);
        Some(addresses)
    }

    pub(crate) fn subdirectory(&self, name: &str) -> PathBuf {
        let directory = self.directory.path().join(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    /// Starts a pod of an agent that connects to the balancer.
    fn pod_or_skip(
        &self,
        number: usize,
        balancer: SocketAddr,
        place: &Place,
        prometheus: Option<String>,
    ) -> Option<Process> {
        let case = self.case;
        let directory = self.subdirectory(&format!("agent-{number}"));
        let scheme = match case.transport {
            Transport::Ws => "ws",
            Transport::Grpc => "grpc",
            Transport::Grpcs => "grpcs",
            _ => "wss",
        };
        let (kas, has_tls) = (format!("{scheme}://{balancer}"), scheme.ends_with('s') && scheme != "ws");
        let token = self.tokens.agent.expose_secret().to_owned();
        let token = if case.is_of_gitlab() { self.gitlab_token.clone() } else { token };
        if case.agent == AgentKind::Independent {
            let Some(program) = program_path("matrix-agentk") else {
                skipped("there is no matrix-agentk: .ci/install-tools builds it");
                return None;
            };
            let file = directory.join("agent-token");
            fs::write(&file, token).unwrap();
            let mut command = Command::new(program);
            command.args(["--kas-address", &kas]).arg("--token-file").arg(file);
            command.arg("--kubeconfig").arg(&place.cluster.kubeconfig);
            if has_tls {
                command.arg("--ca-cert-file").arg(&self.certificates.authority);
            }
            return Some(Process::start("matrix-agentk", &mut command));
        }
        let mut options = AgentOptions {
            kas,
            kas_authority: has_tls.then(|| self.certificates.authority.clone()),
            token,
            kubeconfig: place.cluster.kubeconfig.clone(),
            prometheus,
            hubble: None,
            policy: Some(self.policy()),
            namespaces: None,
            require_scope: false,
            pod_namespace: Some(place.namespace.name.clone()),
            collector: None,
            tunnels: 2,
            grace: 25,
            network: None,
            gitlab_protocol: false,
            environment: self.audit_log(&directory),
        };
        options.environment.push(("AGENTK_POLICY_ENGINE_ALERTS", "true".to_owned()));
        Some(Agent::start(&directory, &options).process)
    }

    /// Starts a pod of an agent that kas dials.
    fn receptive_pod(&self, number: usize, place: &Place, prometheus: Option<&str>) -> (SocketAddr, Process) {
        let mut command = Command::new(Kas::program().with_file_name("agentk"));
        let token = self.directory.path().join("agent-token");
        fs::write(&token, self.tokens.agent.expose_secret()).unwrap();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-format", "text"]);
        command.arg("--listen-key-file").arg(self.directory.path().join("key"));
        if self.case.transport == Transport::Wss {
            command.arg("--listen-certificate-file").arg(&self.certificates.certificate);
            command.arg("--listen-certificate-key-file").arg(&self.certificates.key);
        }
        if let Some(url) = prometheus {
            command.args(["--prometheus-url", url]);
        }
        command.arg("--token-file").arg(token).arg("--kubeconfig").arg(&place.cluster.kubeconfig);
        command.arg("--policy-file").arg(self.policy()).env("POD_NAMESPACE", &place.namespace.name);
        command.args(["--policy-engine-alerts", "--observability-listen-address", "127.0.0.1:0"]);
        command.envs(self.audit_log(&self.subdirectory(&format!("agent-{number}"))));
        let process = Process::start("agentk", command.env_remove("KUBECONFIG"));
        let line = process.line("its address", |line| line.contains("listening for kas"));
        let (_, rest) = line.split_once("address=").unwrap();
        (rest.split(' ').next().unwrap().parse().unwrap(), process)
    }

    /// Returns the settings of the audit log of a pod in its directory, if the request reads it. No API server sends events.
    fn audit_log(&self, directory: &Path) -> Vec<(&'static str, String)> {
        if self.case.request != Request::Audit {
            return Vec::new();
        }
        let Certificates { authority, certificate, key } = &self.certificates;
        let files = [
            ("AGENTK_AUDIT_CERTIFICATE_FILE", certificate.clone()),
            ("AGENTK_AUDIT_CERTIFICATE_KEY_FILE", key.clone()),
            ("AGENTK_AUDIT_CLIENT_CA_FILE", authority.clone()),
            ("AGENTK_AUDIT_DIRECTORY", directory.join("audit")),
        ];
        let files = files.map(|(name, file)| (name, file.display().to_string()));
        files.into_iter().chain([("AGENTK_AUDIT_LISTEN", "127.0.0.1:0".to_owned())]).collect()
    }

    /// Returns the policy file of agentk, which allows the requests of the case.
    fn policy(&self) -> PathBuf {
        let file = self.directory.path().join("policy.yaml");
        if !file.exists() {
            fs::write(&file, self.case.policy.file()).unwrap();
        }
        file
    }

    /// Waits until the agent is connected, and returns the index of a replica that has a tunnel.
    fn wait_for_tunnels(&self, replicas: &[Kas], pods: usize) -> usize {
        let expected = if self.case.agent == AgentKind::Receptive { 1 } else { pods };
        let tunnels = || replicas.iter().map(|kas| kas.metric("kas_tunnels"));
        eventually("the tunnels are open", || tunnels().sum::<f64>() >= expected as f64);
        tunnels().position(|tunnels| tunnels > 0.0).unwrap()
    }
}

/// Returns an address in the line with which kas begins.
pub(crate) fn address_of(kas: &Kas, listener: &str) -> SocketAddr {
    let line = kas.process.line("its addresses", |line| line.contains("\"kas is listening\""));
    let event: Value = serde_json::from_str(&line).unwrap();
    event[listener].as_str().unwrap().parse().unwrap()
}
