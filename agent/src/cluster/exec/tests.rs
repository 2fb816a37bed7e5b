//! Plugins as shell scripts. They are arguments of `sh`, not programs of their own: a test that forks meanwhile would
//! hold such a file open for writing, and running it would fail.

use std::{fs, path::PathBuf, sync::Arc};

use tempfile::TempDir;

use super::{super::Cluster, *};
use crate::cluster::{ClusterOptions, Environment};

struct Fixture {
    directory: TempDir,
}

const API: &str = "client.authentication.k8s.io/v1";

impl Fixture {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A plugin that counts its runs and then does what `script` says.
    fn plugin(&self, script: &str) -> Arc<Plugin> {
        let path = self.path("plugin.sh");
        let count = self.path("runs");
        fs::write(&path, format!("echo run >> {}\n{script}\n", count.display())).unwrap();
        Plugin::new(Command {
            api_version: API,
            program: "sh".into(),
            arguments: vec![path.to_str().unwrap().to_owned()],
            environment: vec![("TOKEN".to_owned(), "from-env".into())],
            info: "{}".to_owned(),
            install_hint: String::new(),
        })
    }

    fn status(&self, status: &str) -> Arc<Plugin> {
        self.plugin(&format!(
            r#"printf %s "{{\"apiVersion\": \"{API}\", \"kind\": \"ExecCredential\", \"status\": {{{}}}}}""#,
            status.replace('"', "\\\"")
        ))
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }
}

async fn token(plugin: &Arc<Plugin>) -> String {
    let value = plugin.credential().await.unwrap().authorization.clone().unwrap();
    assert!(value.is_sensitive());
    value.to_str().unwrap().to_owned()
}

async fn problem(plugin: &Arc<Plugin>) -> String {
    plugin.credential().await.err().unwrap().to_string()
}

fn credential(expires_in: Option<u64>, obtained: Instant) -> Credential {
    let expires = expires_in.map(|seconds| SystemTime::now() + Duration::from_secs(seconds));
    Credential { authorization: None, identity: None, expires, obtained }
}

#[tokio::test]
async fn one_run_serves_everybody() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "$TOKEN""#);
    let callers: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn({
                let plugin = Arc::clone(&plugin);
                async move { token(&plugin).await }
            })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap(), "Bearer from-env");
    }
    assert_eq!(token(&plugin).await, "Bearer from-env");
    assert_eq!(fixture.runs(), 1);
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_stop_the_run() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "t""#);
    drop(tokio::spawn({
        let plugin = Arc::clone(&plugin);
        async move { timeout(Duration::from_nanos(1), plugin.credential()).await.is_ok() }
    }));
    assert_eq!(token(&plugin).await, "Bearer t");
    assert_eq!(fixture.runs(), 1);
}

#[test]
fn renewal_before_expiry() {
    let (wall, obtained) = (SystemTime::now(), Instant::now());
    let later = |seconds| (wall + Duration::from_secs(seconds), obtained + Duration::from_secs(seconds));
    let good = |known: &Credential, (wall, now)| known.is_good(wall, now);

    let forever = credential(None, obtained);
    assert!(good(&forever, later(1_000_000)));
    let hour = credential(Some(3600), obtained);
    assert!(good(&hour, later(3530)));
    assert!(!good(&hour, later(3545)));
    let short = credential(Some(30), obtained);
    assert!(good(&short, later(4)), "not a run per request");
    assert!(!good(&short, later(6)));
}

#[tokio::test]
async fn an_expired_credential_is_renewed() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z""#);
    token(&plugin).await;
    token(&plugin).await;
    assert_eq!(fixture.runs(), 1, "not a run per request");
    age(&plugin);
    token(&plugin).await;
    assert_eq!(fixture.runs(), 2);
}

#[tokio::test]
async fn a_rejected_credential_is_renewed() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "t""#);
    token(&plugin).await;
    plugin.rejected();
    token(&plugin).await;
    assert_eq!(fixture.runs(), 1, "a credential this young would only be the same");
    age(&plugin);
    plugin.rejected();
    token(&plugin).await;
    assert_eq!(fixture.runs(), 2);
}

#[tokio::test]
async fn a_failure_does_not_end_a_valid_credential() {
    let fixture = Fixture::new();
    let plugin = fixture.plugin("exit 1");
    let old = Arc::new(credential(Some(30), Instant::now() - RUN_EVERY));
    plugin.state.lock().credential = Some(Arc::clone(&old));
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&plugin.credential().await.unwrap(), &old));
    }
    assert_eq!(fixture.runs(), 1);
}

#[tokio::test]
async fn failures_are_told_and_not_repeated_at_once() {
    let fixture = Fixture::new();
    let plugin =
        fixture.plugin("echo Warning >&2; echo 'Unable to locate credentials' >&2; echo s3cret; exit 3");
    for _ in 0..3 {
        assert_eq!(
            problem(&plugin).await,
            "the credential plugin sh: failed (exit status: 3): Unable to locate credentials"
        );
    }
    assert_eq!(fixture.runs(), 1);
}

#[tokio::test]
async fn answers_that_cannot_be_used() {
    let fixture = Fixture::new();
    for (script, expected) in [
        ("echo s3cret", "printed something that is not an ExecCredential in JSON (line 1, column 1)"),
        (
            r#"echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}'"#,
            "printed \"ExecCredential\" of \"client.authentication.k8s.io/v1beta1\", not an ExecCredential of \
             client.authentication.k8s.io/v1; make the kubeconfig's apiVersion match",
        ),
        (
            r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}'"#,
            "printed an ExecCredential without status",
        ),
    ] {
        assert_eq!(problem(&fixture.plugin(script)).await, format!("the credential plugin sh: {expected}"));
    }
    for (status, expected) in [
        ("", "printed neither a token nor a client certificate"),
        (r#""token": "s3cret\\n""#, "printed a token that cannot be sent in a header"),
        (r#""clientKeyData": "s3cret""#, "printed only one of clientCertificateData and clientKeyData"),
        (
            r#""token": "s3cret", "expirationTimestamp": "soon""#,
            "printed an invalid expirationTimestamp \"soon\"",
        ),
    ] {
        assert_eq!(problem(&fixture.status(status)).await, format!("the credential plugin sh: {expected}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs() {
    let fixture = Fixture::new();
    let plugin = fixture.plugin("exec sleep 600");
    assert_eq!(problem(&plugin).await, "the credential plugin sh: did not finish within 60s");
}

#[tokio::test]
async fn a_plugin_that_is_not_there() {
    let mut command = Command {
        api_version: API,
        program: "no-such-plugin".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        info: String::new(),
        install_hint: String::new(),
    };
    let start =
        "the credential plugin no-such-plugin: cannot be started: No such file or directory (os error 2); ";
    assert_eq!(
        problem(&Plugin::new(Command { ..command })).await,
        format!("{start}install it where the agent runs, and in its PATH")
    );
    command = Command {
        api_version: API,
        program: "no-such-plugin".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        info: String::new(),
        install_hint: "see example.org\n".to_owned(),
    };
    assert_eq!(problem(&Plugin::new(command)).await, format!("{start}see example.org"));
}

/// All the way from a kubeconfig: a relative command, its environment, what it is told, and a certificate.
#[tokio::test]
async fn from_a_kubeconfig() {
    let fixture = Fixture::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
    let answer = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {
            "token": "t",
            "clientCertificateData": certificate,
            "clientKeyData": key.serialize_pem(),
            "expirationTimestamp": null,
        },
    });
    fs::write(fixture.path("answer"), answer.to_string()).unwrap();
    fs::write(fixture.path("ca.crt"), &certificate).unwrap();
    // A link, so that no file is run that was just written.
    fs::create_dir(fixture.path("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", fixture.path("bin/plugin")).unwrap();
    let path = fixture.path("config");
    fs::write(
        &path,
        "current-context: a\n\
         contexts: [{name: a, context: {cluster: c, user: u}}]\n\
         clusters:\n\
         - name: c\n  cluster:\n    server: https://api.example\n    certificate-authority: ca.crt\n\
         \x20   extensions:\n    - {name: client.authentication.k8s.io/exec, extension: {audience: x}}\n\
         users:\n\
         - name: u\n  user:\n    exec:\n\
         \x20     apiVersion: client.authentication.k8s.io/v1beta1\n\
         \x20     command: ./bin/plugin\n\
         \x20     args: [-c, 'printf %s \"$KUBERNETES_EXEC_INFO\" > \"$OUT/info\"; cat \"$OUT/answer\"']\n\
         \x20     env: [{name: OUT, value: DIR}]\n\
         \x20     provideClusterInfo: true\n\
         \x20     interactiveMode: IfAvailable\n"
            .replace("DIR", fixture.directory.path().to_str().unwrap()),
    )
    .unwrap();

    let options = ClusterOptions { kubeconfig: Some(path), context: None };
    let cluster = Cluster::load_in(&options, &Environment::default()).unwrap();
    assert_eq!(cluster.authorization().await.unwrap().unwrap(), "Bearer t");
    assert!(cluster.tls().config().await.unwrap().client_auth_cert_resolver.has_certs());
    assert!(cluster.to_string().contains("with the credential plugin "), "{cluster}");

    let info: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(fixture.path("info")).unwrap()).unwrap();
    assert_eq!(info["apiVersion"], "client.authentication.k8s.io/v1beta1");
    assert_eq!(info["spec"]["interactive"], false);
    assert_eq!(info["spec"]["cluster"]["server"], "https://api.example");
    assert_eq!(info["spec"]["cluster"]["config"]["audience"], "x");
    assert!(info["spec"]["cluster"]["certificate-authority-data"].is_string());
}

/// Makes the credential old enough to be replaced.
fn age(plugin: &Plugin) {
    let mut state = plugin.state.lock();
    let known = state.credential.take().unwrap();
    state.credential = Some(Arc::new(Credential {
        authorization: known.authorization.clone(),
        identity: known.identity.clone(),
        expires: known.expires,
        obtained: known.obtained - RUN_EVERY,
    }));
}
