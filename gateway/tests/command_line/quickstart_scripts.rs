//! Tests of deploy/quickstart: the scripts call kind, k3d, minikube, helm and kubectl with the files of `kas quickstart`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

/// Each program writes its call to the file `calls`.
const STUB: &str = "#!/bin/sh\necho \"${0##*/} $*\" >> calls\n";
const DOCKER: &str = r#"#!/bin/sh
case "$1" in
  info) cat system ;;
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

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn run(&self, script: &str, arguments: &str) -> Output {
        let path = std::env::var("PATH").unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/quickstart");
        let _ = fs::remove_file(self.0.path().join("calls"));
        Command::new(root.join(script))
            .args(arguments.split_whitespace())
            .current_dir(&self.0)
            .env("PATH", format!("{}:{path}", self.0.path().join("bin").display()))
            .env("KAS", "kas")
            .output()
            .unwrap()
    }

    /// Runs a script that succeeds, and returns the calls.
    fn calls(&self, script: &str, arguments: &str) -> Vec<String> {
        let output = self.run(script, arguments);
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
    let (code, error) = scripts.failure("kas", "");
    assert!(code == Some(64) && error.starts_with("usage: "), "{error}");
}

#[test]
fn agentk_is_installed_with_the_written_files() {
    let scripts = Scripts::new();
    fs::create_dir(scripts.0.path().join("q")).unwrap();
    scripts.write("q/quickstart.yaml", "agent: laptop\nhost: 192.0.2.7\nother_hosts: []\n");
    scripts.write("agentk.oci.tar", "");
    for (arguments, load, context) in [
        ("kind --directory q --image agentk:7", "kind load docker-image agentk:7 --name kind", "kind-kind"),
        (
            "kind --name a --directory q --image agentk.oci.tar",
            "kind load image-archive agentk.oci.tar --name a",
            "kind-a",
        ),
        (
            "k3d --directory q --image agentk:7",
            "k3d image import agentk:7 --cluster k3s-default",
            "k3d-k3s-default",
        ),
        (
            "minikube --directory q --image agentk:7",
            "minikube image load agentk:7 --profile minikube",
            "minikube",
        ),
        ("existing --directory q --name prod --set a=b", "", "prod"),
    ] {
        let mut calls = scripts.calls("agentk", arguments);
        if !load.is_empty() {
            assert_eq!(calls.remove(0), load, "{arguments}");
        }
        let (flags, further) = (format!("--kube-context {context} --namespace agentk"), " --set a=b");
        let values = "--set config.kasAddress=wss://192.0.2.7:8150 --set-file config.token=q/agent-token \
                      --set-file config.kasCaCert=q/ca.crt";
        assert!(
            calls[0].starts_with("helm upgrade --install agentk /") && calls[0].contains(&flags),
            "{calls:?}"
        );
        assert!(calls[0].contains(values), "{calls:?}");
        assert_eq!(calls[0].ends_with(further), arguments.ends_with(further), "{calls:?}");
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
