//! The binary as an operator uses it: a configuration, tokens, a kubeconfig that kubectl reads, and a running kas that is asked
//! for its agents.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    process::{Output, Stdio},
    time::Duration,
};

use agent::{Agent, Options, Services, TcpDial, Telemetry, Token, upstream::TlsOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// A directory with an identity file: the agents `production` and `staging`, and the caller `me`, who may use the former.
struct Site {
    directory: TempDir,
    agent_token: String,
    caller_token: String,
}

/// A running kas and where it listens.
struct Kas {
    _child: Child,
    agent: SocketAddr,
    observability: SocketAddr,
}

/// For everything that takes no time.
const SOON: Duration = Duration::from_secs(20);

impl Site {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Self { directory, agent_token: String::new(), caller_token: String::new() };
        let (agent_token, agent_hash) = site.new_token("agent").await;
        let (caller_token, caller_hash) = site.new_token("caller").await;
        let names = ["127.0.0.1".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        site.put("kas.crt", &pair.cert.pem());
        site.put("kas.key", &pair.signing_key.serialize_pem());
        site.put("agent-token", &agent_token);
        site.put("caller-token", &caller_token);
        let identity = format!(
            "agents:\n- {{id: 1, name: production, tokens: ['{agent_hash}']}}\n- {{id: 2, name: staging, tokens: []}}\n\
             callers:\n- {{name: me, tokens: ['{caller_hash}'], agents: [production], services: [kubernetes]}}\n"
        );
        site.put("identity.yaml", &identity);
        site.configure("127.0.0.1:0", "127.0.0.1:0".parse().unwrap());
        Self { agent_token, caller_token, ..site }
    }

    /// Writes `kas.yaml`.
    fn configure(&self, public: &str, observability: SocketAddr) {
        let text = format!(
            "agent:\n  listen: {{address: '127.0.0.1:0'}}\n  kubernetes_api:\n    listen: {{address: '{public}', \
             certificate_file: kas.crt, key_file: kas.key}}\n\
             observability: {{listen: {{address: '{observability}'}}}}\nidentity: {{file: identity.yaml}}\n"
        );
        self.put("kas.yaml", &text);
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
        command
            .args(arguments.split(' '))
            .current_dir(&self.directory)
            .env_remove("KAS_CONFIG")
            .kill_on_drop(true);
        command
    }

    async fn kas(&self, arguments: &str) -> Output {
        timeout(SOON, self.command(arguments).output()).await.expect("it ends by itself").unwrap()
    }

    /// What it prints, if it succeeds.
    async fn says(&self, arguments: &str) -> String {
        let output = self.kas(arguments).await;
        assert!(output.status.success(), "kas {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Its exit code and its only line, if it fails.
    async fn refuses(&self, arguments: &str) -> (i32, String) {
        let output = self.kas(arguments).await;
        assert!(!output.status.success() && output.stdout.is_empty(), "kas {arguments}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        (output.status.code().unwrap(), said)
    }

    async fn new_token(&self, holder: &str) -> (String, String) {
        let said = self.says(&format!("token new {holder}")).await;
        let value =
            |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        (value("token:"), value("hash:"))
    }

    async fn serve(&self) -> Kas {
        let mut child = self.command("serve --config kas.yaml").stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = timeout(SOON, async {
            loop {
                let line = lines.next_line().await.unwrap().expect("kas keeps running");
                let event: Value = serde_json::from_str(&line).unwrap();
                if event["message"] == "kas is listening" {
                    return event;
                }
            }
        });
        let event = listening.await.expect("kas listens");
        // Read on, so that kas can log on.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let address = |name: &str| event[name].as_str().unwrap().parse().unwrap();
        Kas { agent: address("agent"), observability: address("observability"), _child: child }
    }
}

#[tokio::test]
async fn a_token_has_the_hash_that_it_was_printed_with() {
    let site = Site::new().await;
    let mut hash = site.command("token hash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = hash.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, site.caller_token.as_bytes()).await.unwrap();
    drop(stdin);
    let output = timeout(SOON, hash.wait_with_output()).await.unwrap().unwrap();
    let hash = String::from_utf8(output.stdout).unwrap();
    assert!(site.read("identity.yaml").contains(hash.trim()), "{hash}");
    assert_eq!(site.says("check-config kas.yaml").await, "kas.yaml: good; 2 agents, 1 tokens of callers\n");
}

#[tokio::test]
async fn a_kubeconfig_is_one_that_kubectl_reads() {
    let site = Site::new().await;
    let arguments = "kubeconfig --config kas.yaml --agent 1 --token-file caller-token --caller me --namespace web \
                     --server https://kas.example.com:8154 --output kubeconfig";
    assert_eq!(site.says(arguments).await, "");
    let mode = fs::metadata(site.directory.path().join("kubeconfig")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let kubectl = ["config", "view", "--raw", "--output", "json", "--kubeconfig", "kubeconfig"];
    let Ok(view) = Command::new("kubectl").args(kubectl).current_dir(&site.directory).output().await else {
        return skipped("kubectl is missing");
    };
    assert!(view.status.success(), "{}", String::from_utf8_lossy(&view.stderr));
    let view: Value = serde_json::from_slice(&view.stdout).unwrap();
    assert_eq!(view["current-context"], "production");
    assert_eq!(view["contexts"][0]["name"], "production");
    let context = &view["contexts"][0]["context"];
    assert_eq!((&context["namespace"], &context["user"]), (&"web".into(), &"me@production".into()));
    assert_eq!(view["users"][0]["user"]["token"], site.caller_token);
    let cluster = &view["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], "https://kas.example.com:8154/agents/production/kubernetes");
    let authority = cluster["certificate-authority-data"].as_str().unwrap();
    let authority = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, authority).unwrap();
    assert_eq!(
        String::from_utf8(authority).unwrap(),
        site.read("kas.crt").replace('\r', ""),
        "it is self-signed"
    );
}

#[tokio::test]
async fn a_kubeconfig_that_would_not_work_is_not_written() {
    let site = Site::new().await;
    site.put("strange-token", "strange");
    site.put("kubeconfig", "mine");
    for (arguments, code, expected) in [
        ("--agent production --token-file strange-token", 77, "not one of a caller"),
        ("--agent production --token-file agent-token", 77, "the token is the agent production's"),
        ("--agent production --token-file caller-token --caller you", 77, "of the caller me, not of you"),
        ("--agent staging --token-file caller-token", 77, "caller me may not use the agent staging"),
        ("--agent nowhere --token-file caller-token", 64, "there is no agent \"nowhere\" in identity.yaml"),
        ("--agent production --token-file absent", 64, "the token file absent: the file does not exist"),
        ("--agent production --token-file caller-token", 64, "--server is needed"),
        (
            "--agent production --token-file caller-token --server https://kas --certificate-authority kas.key",
            64,
            "kas.key: holds no PEM certificate",
        ),
        (
            "--agent 1 --token-file caller-token --server https://kas --output kubeconfig",
            73,
            "the file exists",
        ),
    ] {
        let (exit, said) = site.refuses(&format!("kubeconfig --config kas.yaml {arguments}")).await;
        assert!(exit == code && said.contains(expected), "{arguments}: {exit} {said}");
        assert!(!said.contains(&site.caller_token) && !said.contains(&site.agent_token), "{said}");
    }
    assert_eq!(site.read("kubeconfig"), "mine");

    let service = site.read("identity.yaml").replace("services: [kubernetes]", "services: [prometheus]");
    site.put("identity.yaml", &service);
    let (_, said) = site.refuses("kubeconfig --config kas.yaml --agent 1 --token-file caller-token").await;
    assert!(said.contains("caller me may not use the service kubernetes"), "{said}");
}

#[tokio::test]
async fn the_server_is_the_one_of_the_configuration_where_that_works() {
    let site = Site::new().await;
    site.configure("127.0.0.1:8154", "127.0.0.1:0".parse().unwrap());
    let said = site.says("kubeconfig --config kas.yaml --agent 1 --token-file caller-token").await;
    assert!(said.contains("server: https://127.0.0.1:8154/agents/production/kubernetes\n"), "{said}");

    let arguments = "kubeconfig --config kas.yaml --agent 1 --token-file caller-token --server http://kas";
    let output = site.kas(arguments).await;
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no token over plain http"), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("certificate-authority"), "{output:?}");
}

#[tokio::test]
async fn a_running_kas_lists_its_agents() {
    let site = Site::new().await;
    let kas = site.serve().await;
    let (exit, said) = site.refuses("agents --config kas.yaml").await;
    assert!(exit == 64 && said.contains("127.0.0.1:0") && said.contains("give kas a fixed one"), "{said}");

    site.configure("127.0.0.1:0", kas.observability);
    let never = site.says("agents --config kas.yaml").await;
    let states: Vec<_> = never.lines().skip(1).filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(states, ["never", "never"], "{never}");

    let _agent = connect(&site, &kas);
    let connected = timeout(SOON, async {
        loop {
            let said = site.says("agents --config kas.yaml --output json").await;
            let listing: Value = serde_json::from_str(&said).unwrap();
            if listing["agents"][0]["tunnels"].as_array().unwrap().len() == 2 {
                return listing;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let connected = connected.await.expect("the agent connects");
    let tunnel = &connected["agents"][0]["tunnels"][0];
    assert!(tunnel["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{tunnel}");

    let table = site.says("agents --config kas.yaml").await;
    let replica = &connected["replica"].as_str().unwrap()[..8];
    let expected = format!("1   production  connected  -     {replica}  2");
    assert!(table.lines().nth(1).unwrap().starts_with(&expected), "{table}");
    let wide = site.says("agents --config kas.yaml --output wide").await;
    assert_eq!(wide.lines().count(), 4, "heads, two tunnels, and the agent without: {wide}");
    let id = &connected["agents"][0]["tunnels"][0]["id"].as_str().unwrap()[..8];
    assert!(wide.contains(id), "{wide}");
}

#[tokio::test]
async fn where_no_kas_answers_that_is_said() {
    let site = Site::new().await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    site.configure("127.0.0.1:0", nobody);
    let (exit, said) = site.refuses("agents --config kas.yaml").await;
    assert!(exit == 69 && said.contains(&nobody.to_string()) && said.contains("is kas running?"), "{said}");
    assert!(said.contains("observability.listen.address of kas.yaml"), "{said}");

    let (exit, said) = site.refuses("agents --config absent.yaml").await;
    assert_eq!((exit, &*said), (64, "kas: absent.yaml: the file does not exist\n"));
}

#[tokio::test]
async fn there_is_a_manual_and_a_completion() {
    let site = Site::new().await;
    site.says("man --directory manual").await;
    for page in ["kas", "kas-serve", "kas-check-config", "kas-agents", "kas-kubeconfig", "kas-token-new"] {
        assert!(site.read(&format!("manual/{page}.1")).contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!site.directory.path().join("manual/kas-man.1").exists(), "it is hidden");
    assert!(site.says("man").await.contains(".TH kas 1"));
    assert!(site.says("completion bash").await.contains("--token-file"));
}

#[tokio::test]
async fn what_stands_in_redis_is_printed_as_it_is_documented() {
    let said = Site::new().await.says("redis-schema").await;
    assert!(said.lines().count() > 5 && include_str!("../../docs/redis.md").contains(&said), "{said}");
}

/// Runs an agent in this process.
fn connect(site: &Site, kas: &Kas) -> AbortOnDropHandle<()> {
    let address: agent::Address = format!("ws://{}", kas.agent).parse().unwrap();
    let dial = TcpDial::new(address.clone(), TlsOptions::default()).unwrap();
    let services = Services::new().with_fn("kubernetes", async |_: http::Request<tunnel::Body>| {
        http::Response::new(tunnel::Body::empty())
    });
    let options = Options::new(address, Token::Value(site.agent_token.clone().into()));
    let agent = Agent::new(options, dial, services, Telemetry::default());
    AbortOnDropHandle::new(tokio::spawn(agent.run(CancellationToken::new())))
}

/// Says so where the test harness does not capture it; with `E2E_REQUIRE=1` it is a failure.
fn skipped(why: &str) {
    let required = std::env::var("E2E_REQUIRE").is_ok_and(|required| required == "1");
    assert!(!required, "required: {why}");
    let _ =
        writeln!(std::io::stderr(), "SKIPPED {}: {why}", std::thread::current().name().unwrap_or("a test"));
}
