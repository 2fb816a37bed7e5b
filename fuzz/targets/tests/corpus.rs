//! Replays the corpus of each fuzz target, one test per target, in the ordinary test run.

use std::{collections::BTreeSet, fs, path::Path};

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Declares the test of each target, and the list of all targets.
macro_rules! targets {
    ($($target:ident)*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];

        $(
            #[test]
            fn $target() {
                replay(stringify!($target), fuzz_targets::$target::run);
            }
        )*
    };
}

targets! {
    agent_configuration
    api
    authorization
    cluster_audit
    config
    disabled
    environment_template
    gitlab_tunnel
    headers
    hello
    identity
    kubeconfig
    manifests
    oidc
    peer
    policy
    prometheus
    promql
    proxy_header
    redis
    references
    target
    trace_context
}

/// A target without a test has a program or a corpus that is not in the list above.
#[test]
fn each_target_has_a_program_and_a_corpus() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| (*target).to_owned()).collect();
    let programs: BTreeSet<String> = file_names(&Path::new(FUZZ).join("fuzz_targets"))
        .map(|name| name.strip_suffix(".rs").expect("each program is a Rust file").to_owned())
        .collect();
    let corpora: BTreeSet<String> = file_names(&Path::new(FUZZ).join("corpus")).collect();
    assert_eq!(programs, targets, "the programs in fuzz/fuzz_targets are not the targets of this test");
    assert_eq!(corpora, targets, "the folders in fuzz/corpus are not the targets of this test");
}

/// Runs a target with every input of its corpus.
///
/// The name of each input is printed before the input runs, so that it is also known after an abort or a timeout.
#[expect(clippy::print_stderr, reason = "test output is only shown for a failed test")]
fn replay(target: &str, run: fn(&[u8])) {
    let corpus = Path::new(FUZZ).join("corpus").join(target);
    let inputs: BTreeSet<String> = file_names(&corpus).collect();
    assert!(!inputs.is_empty(), "fuzz/corpus/{target} is empty");
    for input in inputs {
        eprintln!("fuzz/corpus/{target}/{input}");
        run(&fs::read(corpus.join(&input)).expect("an input is a readable file"));
    }
}

fn file_names(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| {
        let name = entry.expect("the directory is readable").file_name();
        name.into_string().expect("names are UTF-8")
    })
}
