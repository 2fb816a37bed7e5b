//! Tests of deploy/quickstart: the scripts call kind, k3d, minikube, helm and kubectl with the files of `kas quickstart`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

/// Each program writes its call to the file `calls`.
const STUB: &str = "#!/bin/sh\nprintf '%s\\n' \"${0##*/} $*\" >> calls\n";
const DOCKER: &str = r#"#!/bin/sh
case "$1" in
  info) [ ! -e stopped ] && cat system ;;
  network) [ -e no-network ] || printf 'fc00:f853:ccd:e793::1\n172.18.0.1\n' ;;
esac
"#;

/// A directory with stand-ins for the programs.
struct Scripts(TempDir);

impl Scripts {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("bin")).unwrap();
        let stubs = ["kas", "kind", "k3d", "minikube", "helm", "kubectl"].map(|name| (name, STUB));
        for (name, text) in stubs.into_iter().chain([("docker", DOCKER)]) {
            let file = directory.path().join("bin").join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let scripts = Self(directory);
        scripts.write("system", "Debian GNU/Linux 13\n");
        scripts
    }

    /// Writes an archive with an image, as `make image` does.
    fn archive(&self, name: &str, image: &str) {
        let index =
            format!(r#"{{"manifests": [{{"annotations": {{"io.containerd.image.name": "{image}"}}}}]}}"#);
        self.write("index.json", &index);
        let mut tar = Command::new("tar");
        let status = tar.args(["-cf", name, "index.json"]).current_dir(&self.0).status().unwrap();
        assert!(status.success());
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn run(&self, script: &str, arguments: &str) -> Output {
        self.run_with(script, &arguments.split_whitespace().collect::<Vec<_>>())
    }

    fn run_with(&self, script: &str, arguments: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/quickstart");
        let _ = fs::remove_file(self.0.path().join("calls"));
        Command::new(root.join(script))
            .args(arguments)
            .current_dir(&self.0)
            .env("PATH", format!("{}:{path}", self.0.path().join("bin").display()))
            .env("KAS", "kas")
            .output()
            .unwrap()
    }

    /// Runs a script that succeeds, and returns the calls.
    fn calls(&self, script: &str, arguments: &str) -> Vec<String> {
        self.successful(&self.run(script, arguments))
    }

    /// Returns the calls of a script that has succeeded.
    fn successful(&self, output: &Output) -> Vec<String> {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let calls = fs::read_to_string(self.0.path().join("calls")).unwrap();
        calls.lines().map(str::to_owned).collect()
    }

    /// Runs a script that fails, and returns its exit code and the message.
    fn failure(&self, script: &str, arguments: &str) -> (Option<i32>, String) {
        let output = self.run(script, arguments);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn kas_gets_the_name_of_this_machine_in_each_kind_of_cluster() {
    let scripts = Scripts::new();
    for (cluster, expected) in [
        ("kind --agent a", "kas quickstart --host 172.18.0.1 --run --agent a"),
        ("k3d", "kas quickstart --host host.k3d.internal --run"),
        ("minikube", "kas quickstart --host host.minikube.internal --run"),
        ("existing --host kas.test", "kas quickstart --run --host kas.test"),
    ] {
        assert_eq!(scripts.calls("kas", cluster), [expected], "{cluster}");
    }
    scripts.write("system", "Docker Desktop\n");
    assert_eq!(scripts.calls("kas", "kind"), ["kas quickstart --host host.docker.internal --run"]);

    scripts.write("system", "Debian GNU/Linux 13\n");
    scripts.write("no-network", "");
    let (code, error) = scripts.failure("kas", "kind");
    assert!(code == Some(69) && error.contains("create the cluster first"), "{error}");
    scripts.write("stopped", "");
    let (code, error) = scripts.failure("kas", "kind");
    assert!(code == Some(69) && error.starts_with("docker does not respond"), "{error}");
    let (code, error) = scripts.failure("kas", "");
    assert!(code == Some(64) && error.starts_with("usage: "), "{error}");
}

#[test]
fn kas_runs_again_with_the_files_of_the_same_host() {
    let scripts = Scripts::new();
    for directory in ["kas-quickstart", "q"] {
        fs::create_dir(scripts.0.path().join(directory)).unwrap();
        scripts.write(&format!("{directory}/quickstart.yaml"), "agent: laptop\nhost: host.k3d.internal\n");
    }
    for (arguments, expected) in [
        ("k3d", "kas quickstart --run"),
        ("k3d --directory q", "kas quickstart --run --directory q"),
        ("k3d --directory=new", "kas quickstart --host host.k3d.internal --run --directory=new"),
        ("k3d --host a.test", "kas quickstart --host host.k3d.internal --run --host a.test"),
        ("existing", "kas quickstart --run"),
    ] {
        assert_eq!(scripts.calls("kas", arguments), [expected], "{arguments}");
    }
    let (code, error) = scripts.failure("kas", "minikube --directory q");
    assert!(code == Some(64) && error.contains("with rm -r q, and run this"), "{error}");
}

#[test]
fn agentk_is_installed_with_the_written_files() {
    let scripts = Scripts::new();
    fs::create_dir(scripts.0.path().join("q")).unwrap();
    scripts.write("q/quickstart.yaml", "agent: laptop\nhost: 192.0.2.7\nother_hosts: []\n");
    scripts.archive("agentk.oci.tar", "docker.io/library/agentk:8");
    for (arguments, load, context, image) in [
        (
            "kind --directory q --image r.test:5000/agentk:7",
            "kind load docker-image r.test:5000/agentk:7 --name kind",
            "kind-kind",
            " --set image.repository=r.test:5000/agentk --set-string image.tag=7",
        ),
        (
            "kind --name a --directory q --image agentk.oci.tar",
            "kind load image-archive agentk.oci.tar --name a",
            "kind-a",
            " --set image.repository=docker.io/library/agentk --set-string image.tag=8",
        ),
        (
            "k3d --directory q --image agentk:7",
            "k3d image import agentk:7 --cluster k3s-default",
            "k3d-k3s-default",
            " --set image.repository=agentk --set-string image.tag=7",
        ),
        (
            "minikube --directory=q --image=agentk:7",
            "minikube image load agentk:7 --profile minikube",
            "minikube",
            " --set image.repository=agentk --set-string image.tag=7",
        ),
        (
            "existing --directory q --name prod --image r/agentk@sha256:ab",
            "",
            "prod",
            " --set image.repository=r/agentk --set image.digest=sha256:ab",
        ),
        ("existing --directory q --name prod --set a=b", "", "prod", " --set a=b"),
    ] {
        let mut calls = scripts.calls("agentk", arguments);
        if !load.is_empty() {
            assert_eq!(calls.remove(0), load, "{arguments}");
        }
        let flags = format!("--kube-context {context} --namespace agentk");
        let values = "--set config.kasAddress=wss://192.0.2.7:8150 --set-file config.token=q/agent-token \
                      --set-file config.kasCaCert=q/ca.crt";
        assert!(
            calls[0].starts_with("helm upgrade --install agentk /") && calls[0].contains(&flags),
            "{calls:?}"
        );
        assert!(calls[0].ends_with(&format!("{values}{image}")), "{calls:?}");
        let rollout = format!(
            "kubectl --context {context} --namespace agentk rollout status deployment/agentk --timeout 2m"
        );
        assert_eq!(
            calls[1..],
            [rollout, "kubectl --kubeconfig q/kubeconfig get pods --all-namespaces".to_owned()]
        );
    }

    scripts.write("q/quickstart.yaml", "agent: laptop\nhost: \"2001:db8::7\"\nother_hosts: []\n");
    let calls = scripts.calls("agentk", "existing --directory q --name prod");
    assert!(calls[0].contains("config.kasAddress=wss://[2001:db8::7]:8150"), "{calls:?}");
    let (code, error) = scripts.failure("agentk", "kind --directory absent");
    assert!(code == Some(64) && error.contains("run deploy/quickstart/kas kind first"), "{error}");
}

#[test]
fn path_with_a_comma_is_one_value_of_helm() {
    let scripts = Scripts::new();
    fs::create_dir(scripts.0.path().join("my, files")).unwrap();
    scripts.write("my, files/quickstart.yaml", "agent: laptop\nhost: kas.test\nother_hosts: []\n");
    let arguments = ["existing", "--name", "prod", "--directory", "my, files"];
    let calls = scripts.successful(&scripts.run_with("agentk", &arguments));
    let values =
        r"--set-file config.token=my\, files/agent-token --set-file config.kasCaCert=my\, files/ca.crt";
    assert!(calls[0].ends_with(values), "{calls:?}");
}

#[test]
fn wrong_flags_of_agentk_change_nothing() {
    let scripts = Scripts::new();
    fs::create_dir(scripts.0.path().join("q")).unwrap();
    scripts.write("q/quickstart.yaml", "agent: laptop\nhost: kas.test\nother_hosts: []\n");
    scripts.archive("agentk.oci.tar", "docker.io/library/agentk:8");
    scripts.write("empty.tar", "");
    for (arguments, expected) in [
        ("kind --directory q --name", "--name needs a value"),
        ("kind --directory q --name=", "--name needs a value"),
        ("other --directory q", "usage: "),
        ("existing --directory q --image agentk.oci.tar", "cannot be loaded into an existing cluster"),
        ("kind --directory q --image empty.tar", "has no name of an image"),
        ("kind --directory q --image r.test:5000/agentk", "has no tag"),
    ] {
        let (code, error) = scripts.failure("agentk", arguments);
        assert!(code == Some(64) && error.contains(expected), "{arguments}: {error}");
        assert!(!scripts.0.path().join("calls").exists(), "{arguments}");
    }
}
