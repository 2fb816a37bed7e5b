//! The files of a kas, its commands, and a running kas.

use std::{
    fs,
    net::SocketAddr,
    process::{Output, Stdio},
    time::Duration,
};

use agentk_core::{
    Agent, AgentToken, KasAddress, Observability, Services, SessionConfig, TcpDialer,
    upstream::ClientTlsConfig,
};
use agentk_gitlab::gitlab_protocol;
use serde_json::Value;
use tempfile::TempDir;
use testing::process::{Signal, send_signal};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// A directory with the files of a kas.
///
/// The identity file has the agents `production` and `staging`, and the caller `me` with access to `production`.
pub(crate) struct Workspace {
    pub(crate) directory: TempDir,
    pub(crate) agent_token: String,
    pub(crate) caller_token: String,
}

/// A running kas and where it listens.
pub(crate) struct Kas {
    pub(crate) child: Child,
    pub(crate) agent: SocketAddr,
    pub(crate) public: SocketAddr,
    pub(crate) observability: SocketAddr,
    /// The lines of the log before the listeners were bound.
    pub(crate) started: Vec<Value>,
}

/// The timeout of every wait.
pub(crate) const SOON: Duration = Duration::from_secs(20);

impl Workspace {
    pub(crate) async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Self { directory, agent_token: String::new(), caller_token: String::new() };
        let (agent_token, agent_hash) = workspace.new_token("agent").await;
        let (caller_token, caller_hash) = workspace.new_token("caller").await;
        let names = ["127.0.0.1".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        workspace.write("kas.crt", &pair.cert.pem());
        workspace.write("kas.key", &pair.signing_key.serialize_pem());
        workspace.write("agent-token", &agent_token);
        workspace.write("caller-token", &caller_token);
        let identity = format!(
            "agents:\n- {{id: 1, name: production, tokens: ['{agent_hash}']}}\n- {{id: 2, name: staging, tokens: []}}\n\
             callers:\n- {{name: me, tokens: ['{caller_hash}'], agents: [production], services: [kubernetes]}}\n"
        );
        workspace.write("identity.yaml", &identity);
        workspace.configure("127.0.0.1:0", "127.0.0.1:0".parse().unwrap());
        Self { agent_token, caller_token, ..workspace }
    }

    /// Writes `kas.yaml`.
    pub(crate) fn configure(&self, public: &str, observability: SocketAddr) {
        let text = format!(
            "agent:\n  listen: {{address: '127.0.0.1:0'}}\n  kubernetes_api:\n    listen: {{address: '{public}', \
             certificate_file: kas.crt, key_file: kas.key}}\n\
             observability: {{listen: {{address: '{observability}'}}}}\nidentity: {{file: identity.yaml}}\n"
        );
        self.write("kas.yaml", &text);
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
        command
            .args(arguments.split(' '))
            .current_dir(&self.directory)
            .env_remove("KAS_CONFIG")
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, arguments: &str) -> Output {
        timeout(SOON, self.command(arguments).output()).await.expect("the command exits").unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub(crate) async fn stdout(&self, arguments: &str) -> String {
        let output = self.run(arguments).await;
        assert!(output.status.success(), "kas {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with one line. Returns the exit code and that line.
    pub(crate) async fn failure(&self, arguments: &str) -> (i32, String) {
        let output = self.run(arguments).await;
        assert!(!output.status.success() && output.stdout.is_empty(), "kas {arguments}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        (output.status.code().unwrap(), text)
    }

    pub(crate) async fn new_token(&self, holder: &str) -> (String, String) {
        let text = self.stdout(&format!("token new {holder}")).await;
        let value =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        (value("token:"), value("hash:"))
    }

    pub(crate) async fn serve(&self) -> Kas {
        self.serve_by("serve --config kas.yaml").await
    }

    /// Runs a command that serves, and waits until it listens.
    pub(crate) async fn serve_by(&self, arguments: &str) -> Kas {
        let mut child = self.command(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut started = Vec::new();
        let listening = timeout(SOON, async {
            loop {
                let line = lines.next_line().await.unwrap().expect("kas keeps running");
                let event: Value = serde_json::from_str(&line).unwrap();
                if event["message"] == "kas is listening" {
                    return event;
                }
                started.push(event);
            }
        });
        let event = listening.await.expect("kas listens");
        // The rest is read, so that kas does not block on its log.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let address = |name: &str| event[name].as_str().unwrap().parse().unwrap();
        Kas {
            agent: address("agent"),
            public: address("public"),
            observability: address("observability"),
            started,
            child,
        }
    }
}

impl Kas {
    pub(crate) fn signal(&self, signal: Signal) {
        send_signal(self.child.id().expect("kas runs"), signal).unwrap();
    }

    /// Returns the body of a response of the observability listener.
    pub(crate) async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.observability).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: kas\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub(crate) async fn wait_until(&self, path: &str, condition: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let met = async {
            while !condition(&last) {
                last = self.get(path).await;
                sleep(Duration::from_millis(50)).await;
            }
        };
        let met = timeout(SOON, met).await;
        assert!(met.is_ok(), "{path}: {last}");
    }
}

/// Runs an agent in this process, which connects to kas at this address.
pub(crate) fn run_agent(
    kas: &str,
    token: AgentToken,
    tls: ClientTlsConfig,
    services: Services,
) -> AbortOnDropHandle<()> {
    let address: KasAddress = kas.parse().unwrap();
    let dial = TcpDialer::new(address.clone(), tls).unwrap();
    let options = SessionConfig::new(address, token);
    let agent = Agent::new(options, dial, services, Observability::default(), gitlab_protocol);
    AbortOnDropHandle::new(tokio::spawn(agent.run(CancellationToken::new())))
}
