//! Login at a real OpenID Provider, with `kas login` as the credential plugin of kubectl.

use std::{fs, path::PathBuf, process::Command};

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::support::{AGENT, Cluster, Installation, Kas, OidcProvider, Process, Simulator, eventually, run};

/// A kubectl whose kubeconfig `kas kubeconfig --exec` has written.
struct Person<'a> {
    world: &'a Installation,
    kubeconfig: PathBuf,
}

/// Starts kas with the issuer, and gives its users the right to use the agent.
fn world(provider: &OidcProvider, cluster: &std::path::Path) -> Installation {
    let issuer = json!({
        "name": "op", "issuer": provider.url, "audiences": [OidcProvider::CLIENT], "groups_claim": "groups",
    });
    let world = Installation::start(cluster, |options, certificates| {
        options.public_tls = Some(certificates);
        options.sections.push(("oidc", json!({"issuers": [issuer]})));
    });
    put_caller(&world, "id1");
    world.kas.process.line("it has read the file", |line| line.contains("file reloaded"));
    world
}

/// Replaces the identity file by one whose only caller is the user with this `sub`.
fn put_caller(world: &Installation, sub: &str) {
    let agent = access::token::TokenHash::of(&world.tokens.agent).to_string();
    let identity = json!({
        "agents": [{"id": 7, "name": AGENT, "tokens": [agent]}],
        "callers": [{
            "name": "people", "oidc": {"issuer": "op", "claims": {"sub": sub}}, "agents": ["*"],
            "services": ["kubernetes"], "access_as": {"user": {}},
        }],
    });
    let file = |name: &str| world.directory().join(name);
    fs::write(file("identity.new"), identity.to_string()).unwrap();
    fs::rename(file("identity.new"), file("identity.yaml")).unwrap();
}

impl<'a> Person<'a> {
    fn new(world: &'a Installation) -> Self {
        let kubeconfig = world.directory().join("person.kubeconfig");
        let mut command = Kas::command();
        command.args(["kubeconfig", "--agent", AGENT, "--exec", "op", "--server", &world.kas.url("")]);
        command.arg("--config").arg(world.directory().join("kas.yaml")).arg("--output").arg(&kubeconfig);
        command.arg("--certificate-authority").arg(world.kas.authority().unwrap());
        command.args([
            "--login-arg=--browser",
            "--login-arg=--redirect-uri",
            "--login-arg",
            OidcProvider::REDIRECT,
        ]);
        let output = run(&mut command, b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { world, kubeconfig }
    }

    /// Starts kubectl, which finds `kas` on its `PATH`.
    fn kubectl(&self, arguments: &[&str]) -> Process {
        let programs = Kas::program().parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut command = Command::new("kubectl");
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(self.world.directory().join("kubectl"));
        command.args(arguments).env("PATH", path).env("BROWSER", "true").env_remove("KUBECONFIG");
        command.env("XDG_CACHE_HOME", self.world.directory().join("cache"));
        Process::start("kubectl", &mut command)
    }

    /// Runs kubectl to its end. Returns the exit code and the output.
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let mut kubectl = self.kubectl(arguments);
        (kubectl.exit_code(), kubectl.printed())
    }

    /// Runs the first kubectl, during which the person logs in.
    fn log_in(&self, provider: &OidcProvider, arguments: &[&str]) -> (i32, String) {
        let mut kubectl = self.kubectl(arguments);
        let page = kubectl.line("the page of the login", |line| line.starts_with("http"));
        assert!(!page.contains("secret") && page.contains("code_challenge_method=S256"), "{page}");
        provider.log_in(&page);
        (kubectl.exit_code(), kubectl.printed())
    }
}

#[test]
fn kubectl_logs_in_once_and_loses_its_rights_with_the_entry() {
    let (Some(cluster), Some(provider)) = (Simulator::or_skip(), OidcProvider::or_skip()) else { return };
    let world = world(&provider, &cluster.kubeconfig);
    let person = Person::new(&world);
    let (code, printed) = person.log_in(&provider, &["get", "namespaces", "--output=name"]);
    assert!(code == 0 && printed.contains("namespace/default"), "{printed}");
    let (code, printed) = person.run(&["get", "namespaces", "--output=name"]);
    assert!(code == 0 && !printed.contains("To log in"), "{printed}");
    let accepted = || world.kas.metric_with("kas_oidc_tokens_total", "accepted");
    assert_eq!(accepted(), 1.0, "kubectl used the same token");

    put_caller(&world, "id2");
    eventually("kas refuses the token", || {
        let (code, printed) = person.run(&["get", "namespaces"]);
        code == 1 && printed.contains("no-matching-caller")
    });
    let log = world.kas.process.printed();
    let cache = fs::read_dir(world.directory().join("cache/kas/login")).unwrap();
    let cached =
        cache.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).find(|text| !text.is_empty());
    let cached: Value = serde_json::from_str(&cached.unwrap()).unwrap();
    for secret in [cached["token"].as_str().unwrap(), world.tokens.agent.expose_secret()] {
        assert!(!log.contains(secret), "the log has a token");
    }
}

#[test]
fn user_of_the_provider_is_the_user_in_the_cluster() {
    let (Some(cluster), Some(provider)) = (Cluster::or_skip(), OidcProvider::or_skip()) else { return };
    let world = world(&provider, &cluster.kubeconfig);
    let namespace = cluster.namespace("oidc");
    let person = Person::new(&world);
    let get = ["get", "pods", "--namespace", &namespace.name];
    let (code, printed) = person.log_in(&provider, &get);
    assert!(code == 1 && printed.contains("User \"op:id1\" cannot list resource \"pods\""), "{printed}");
    namespace.kubectl.ok(&["create", "role", "reader", "--verb=list,get", "--resource=pods"]);
    namespace.kubectl.ok(&["create", "rolebinding", "person", "--role=reader", "--user=op:id1"]);
    eventually("the binding is in force", || person.run(&get).0 == 0);
    assert_eq!(person.run(&["get", "secrets", "--namespace", &namespace.name]).0, 1);
}
