//! Tests with shell scripts as plugins. They are arguments of `sh`, not programs of their own: another test that forks at the
//! same time would hold such a file open for writing, so that it could not be run.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::PathBuf,
    sync::Arc,
};

use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use super::{super::Cluster, *};
use crate::cluster::{ClusterEnvironment, KubeconfigOptions};

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

    /// Returns a plugin that counts its runs and then runs `script`.
    fn plugin(&self, script: &str) -> Arc<ExecPlugin> {
        let path = self.path("plugin.sh");
        let count = self.path("runs");
        fs::write(&path, format!("echo run >> {}\n{script}\n", count.display())).unwrap();
        ExecPlugin::new(PluginCommand {
            api_version: API,
            program: "sh".into(),
            arguments: vec![path.to_str().unwrap().to_owned()],
            environment: vec![("TOKEN".to_owned(), "from-env".into())],
            info: "{}".to_owned(),
            install_hint: String::new(),
        })
    }

    fn status(&self, status: &str) -> Arc<ExecPlugin> {
        self.plugin(&format!(
            r#"printf %s "{{\"apiVersion\": \"{API}\", \"kind\": \"ExecCredential\", \"status\": {{{}}}}}""#,
            status.replace('"', "\\\"")
        ))
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }
}

async fn token(plugin: &Arc<ExecPlugin>) -> String {
    let value = plugin.credential().await.unwrap().authorization.clone().unwrap();
    assert!(value.is_sensitive());
    value.to_str().unwrap().to_owned()
}

async fn problem(plugin: &Arc<ExecPlugin>) -> String {
    plugin.credential().await.err().unwrap().to_string()
}

fn credential(expires_in: Option<u64>, obtained: Instant) -> PluginCredential {
    let expires = expires_in.map(|seconds| SystemTime::now() + Duration::from_secs(seconds));
    PluginCredential { authorization: None, identity: None, expires, obtained }
}

#[tokio::test]
async fn one_run_serves_concurrent_requests() {
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
async fn cancelled_request_does_not_stop_the_run() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "t""#);
    drop(tokio::spawn({
        let plugin = Arc::clone(&plugin);
        async move { tokio::time::timeout(Duration::from_nanos(1), plugin.credential()).await.is_ok() }
    }));
    assert_eq!(token(&plugin).await, "Bearer t");
    assert_eq!(fixture.runs(), 1);
}

#[test]
fn credential_is_renewed_before_it_expires() {
    let (wall, obtained) = (SystemTime::now(), Instant::now());
    let later = |seconds| (wall + Duration::from_secs(seconds), obtained + Duration::from_secs(seconds));
    let fresh = |credential: &PluginCredential, (wall, now)| credential.is_fresh(wall, now);

    let forever = credential(None, obtained);
    assert!(fresh(&forever, later(1_000_000)));
    let hour = credential(Some(3600), obtained);
    assert!(fresh(&hour, later(3530)));
    assert!(!fresh(&hour, later(3545)));
    let short = credential(Some(30), obtained);
    assert!(fresh(&short, later(4)), "there is no run for each request");
    assert!(!fresh(&short, later(6)));
}

#[tokio::test]
async fn expired_credential_is_renewed() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z""#);
    token(&plugin).await;
    token(&plugin).await;
    assert_eq!(fixture.runs(), 1, "there is no run for each request");
    age(&plugin);
    token(&plugin).await;
    assert_eq!(fixture.runs(), 2);
}

#[tokio::test]
async fn rejected_credential_is_renewed() {
    let fixture = Fixture::new();
    let plugin = fixture.status(r#""token": "t""#);
    token(&plugin).await;
    plugin.invalidate();
    token(&plugin).await;
    assert_eq!(fixture.runs(), 1, "a new run would print the same credential");
    age(&plugin);
    plugin.invalidate();
    token(&plugin).await;
    assert_eq!(fixture.runs(), 2);
}

#[tokio::test]
async fn valid_credential_is_used_after_a_failure() {
    let fixture = Fixture::new();
    let plugin = fixture.plugin("exit 1");
    let old = Arc::new(credential(Some(30), Instant::now() - MIN_RUN_PERIOD));
    plugin.state.lock().credential = Some(Arc::clone(&old));
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&plugin.credential().await.unwrap(), &old));
    }
    assert_eq!(fixture.runs(), 1);
}

#[tokio::test]
async fn failure_is_cached_and_has_the_last_line_of_stderr() {
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
async fn invalid_output_is_an_error() {
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

/// Every process of the plugin holds the writing end of a FIFO, so that its reader reaches the end once all have exited.
#[tokio::test]
async fn hanging_plugin_is_killed_with_its_children() {
    let fixture = Fixture::new();
    let fifo = fixture.path("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let script =
        format!("exec 3> {}; (sleep 60; echo survived >&3) & echo started >&3; wait", fifo.display());
    let plugin = fixture.plugin(&script);
    let asking = tokio::spawn(async move { problem(&plugin).await });
    let started = tokio::task::spawn_blocking(move || {
        let mut fifo = BufReader::new(fs::File::open(fifo).unwrap());
        let mut line = String::new();
        fifo.read_line(&mut line).unwrap();
        (fifo, line)
    });
    let (mut fifo, line) = started.await.unwrap();
    assert_eq!(line, "started\n");

    tokio::time::pause();
    assert_eq!(asking.await.unwrap(), "the credential plugin sh: did not finish within 10s");
    let mut rest = String::new();
    fifo.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[tokio::test]
async fn endless_output_is_an_error() {
    let fixture = Fixture::new();
    for script in ["exec cat /dev/zero", "exec cat /dev/zero >&2"] {
        let problem = problem(&fixture.plugin(script)).await;
        assert_eq!(problem, "the credential plugin sh: printed more than 1 MiB");
    }
}

#[tokio::test]
async fn missing_plugin_is_an_error_with_a_hint() {
    let mut command = PluginCommand {
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
        problem(&ExecPlugin::new(PluginCommand { ..command })).await,
        format!("{start}install it where agentk runs, in its PATH")
    );
    command = PluginCommand {
        api_version: API,
        program: "no-such-plugin".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        info: String::new(),
        install_hint: "see example.org\n".to_owned(),
    };
    assert_eq!(problem(&ExecPlugin::new(command)).await, format!("{start}see example.org"));
}

/// A plugin of a kubeconfig, with a relative command, an environment, cluster information and a certificate.
#[tokio::test]
async fn plugin_of_a_kubeconfig_is_run() {
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
    // A link, since a file that was just written may not be executable yet (see above).
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

    let options = KubeconfigOptions { file: Some(path), context: None };
    let cluster = Cluster::load_in(&options, &ClusterEnvironment::default()).unwrap();
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
fn age(plugin: &ExecPlugin) {
    let mut state = plugin.state.lock();
    let known = state.credential.take().unwrap();
    state.credential = Some(Arc::new(PluginCredential {
        authorization: known.authorization.clone(),
        identity: known.identity.clone(),
        expires: known.expires,
        obtained: known.obtained - MIN_RUN_PERIOD,
    }));
}
