//! Tests of deploy/image and deploy/deb with a small program in place of kas and agentk.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use testing::skip::{installed, skipped};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a script of deploy into a directory, and returns the content of the files that it writes.
fn build(script: &str, programs: &Path, output: &Path, seed: &str) -> BTreeMap<String, Vec<u8>> {
    let result = Command::new(repository().join("deploy").join(script))
        .arg("--programs")
        .arg(programs)
        .arg("--output")
        .arg(output)
        // The order of sets in Python depends on it.
        .env("PYTHONHASHSEED", seed)
        .output()
        .unwrap();
    assert!(result.status.success(), "{script}: {}", String::from_utf8_lossy(&result.stderr));
    let entries = fs::read_dir(output).unwrap().map(|entry| entry.unwrap());
    entries.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// The lines of the list of a package: modes and paths.
fn contents(package: &Path) -> Vec<(String, String)> {
    let output = Command::new("dpkg-deb").arg("--contents").arg(package).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    text.lines().map(words).map(|words| (words[0].clone(), words[5].clone())).collect()
}

#[test]
fn images_and_packages_of_the_same_programs_are_the_same_bytes() {
    let tools = ["python3", "dpkg-deb", "dpkg-shlibdeps", "objcopy"];
    if let Some(missing) = tools.into_iter().find(|tool| !installed(tool)) {
        return skipped(&format!("there is no {missing}"));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let programs = [path("programs-1"), path("programs-2")];
    for copy in &programs {
        fs::create_dir(copy).unwrap();
        // It prints its arguments in place of a manual page.
        ["kas", "agentk"].map(|name| fs::copy("/bin/echo", copy.join(name)).unwrap());
    }
    thread::scope(|scope| {
        for script in ["image", "deb"] {
            let builds = [("1", &programs[0]), ("2", &programs[1])].map(|(seed, programs)| {
                let output = path(&format!("{script}-{seed}"));
                scope.spawn(move || build(script, programs, &output, seed))
            });
            let [first, second] = builds.map(|build| build.join().unwrap());
            assert!(first.len() >= 2 && first.keys().eq(second.keys()), "{:?}", first.keys());
            for (name, content) in &first {
                assert!(second[name] == *content, "{name} differs");
            }
        }
    });

    let mut debs = fs::read_dir(path("deb-1")).unwrap().map(|entry| entry.unwrap().path());
    let agentk = debs.find(|path| path.to_string_lossy().contains("/agentk_")).unwrap();
    let contents = contents(&agentk);
    for (mode, file) in [
        ("-rwxr-xr-x", "./usr/bin/agentk"),
        ("-rw-r--r--", "./usr/lib/systemd/system/agentk.service"),
        ("-rw-r--r--", "./usr/lib/sysusers.d/agentk.conf"),
        ("-rw-r--r--", "./usr/share/bash-completion/completions/agentk"),
        ("-rw-r--r--", "./usr/share/doc/agentk/copyright"),
        ("-rw-r--r--", "./usr/share/doc/agentk/examples/policy.example.yaml"),
        ("-rw-r--r--", "./usr/share/man/man1/agentk.1.gz"),
    ] {
        assert!(contents.contains(&(mode.to_owned(), file.to_owned())), "{mode} {file}: {contents:#?}");
    }
    let extracted = path("extracted");
    let status = Command::new("dpkg-deb").arg("--extract").args([&agentk, &extracted]).status().unwrap();
    assert!(status.success());
    let unit = fs::read_to_string(extracted.join("usr/lib/systemd/system/agentk.service")).unwrap();
    assert!(unit.contains("ExecStart=/usr/bin/agentk\n"), "{unit}");
}
