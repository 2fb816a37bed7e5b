//! Tests of `kas agents manifest`.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use testing::skip::{helm, skipped};
use tokio::{io::AsyncWriteExt as _, process::Command};

/// Runs `kas agents manifest` with a token on standard input.
async fn manifest(arguments: &[&str], token: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
    command.env_clear().args(["agents", "manifest"]).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Fails if the program has refused its arguments before it reads.
    let _ = child.stdin.take().unwrap().write_all(token.as_bytes()).await;
    child.wait_with_output().await.unwrap()
}

#[tokio::test]
async fn printed_manifests_are_those_of_helm() {
    let printed = manifest(
        &["prod", "--kas-address", "wss://kas.test/a", "--namespace", "tools", "--image", "r.test/agentk:7"],
        "s3cret\n",
    );
    let printed = printed.await;
    assert_eq!(printed.status.code(), Some(0), "{}", String::from_utf8_lossy(&printed.stderr));
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert_eq!(printed.matches("s3cret").count(), 1);
    let Some(helm) = helm() else { return skipped("there is no helm") };
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/charts/agentk");
    // The helm command in the comment, which renders in place of installing.
    let (comment, _) = printed.split_once("\n---").unwrap();
    let words = comment.split_whitespace().filter(|word| !matches!(*word, "#" | "\\"));
    let flags = words.skip_while(|word| *word != "--namespace").take_while(|word| *word != "Kubernetes");
    let rendered = Command::new(helm)
        .args(["template", "agentk"])
        .arg(chart)
        .args(["--kube-version", "1.34.0", "--skip-tests"])
        .args(flags)
        .output()
        .await
        .unwrap();
    assert_eq!(rendered.status.code(), Some(0), "{}", String::from_utf8_lossy(&rendered.stderr));
    // Helm 4 writes an empty line after each object.
    let rendered = String::from_utf8(rendered.stdout).unwrap().replace("\n\n---\n", "\n---\n");
    let objects = &printed[printed.find("# Source: ").unwrap()..];
    assert_eq!(objects.trim_end(), rendered.trim_end().strip_prefix("---\n").unwrap());
}

#[tokio::test]
async fn manifests_need_a_token_on_standard_input() {
    let arguments = ["prod", "--kas-address", "wss://kas.test"];
    for (arguments, token, expected) in [
        (&arguments[..], "\n", "standard input has no token"),
        (&arguments, "two words\n", "not a token"),
        (&["prod", "--kas-address", "https://kas.test"], "t", "write it like wss://kas.example.com:8150"),
        (
            &["prod", "--kas-address", "wss://kas.test", "--namespace", "a,b"],
            "t",
            "the exact name of a namespace",
        ),
        (&["prod"], "t", "--kas-address"),
        (
            &["prod", "--kas-address", "wss://kas.test", "--kas-cacert", "/none/ca.crt"],
            "t",
            "--kas-cacert /none/ca.crt: ",
        ),
    ] {
        let refused = manifest(arguments, token).await;
        let error = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(64), "{error}");
        assert!(error.contains(expected) && refused.stdout.is_empty(), "{arguments:?}: {error}");
    }
}
