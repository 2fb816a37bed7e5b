//! Tests of deploy/image, deploy/deb and deploy/static with a small program in place of kas and agentk.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use testing::skip::{installed, skipped};

/// The crates of a program: the real ones take cargo seconds.
const CARGO: &str = "#!/bin/sh
case \"$*\" in
  metadata*) cat \"${0%/*}/metadata\" ;;
  *'--package gateway'*) printf '0 gateway v1.0.0\\n1 b v2.0.0\\n2 c v3.0.0\\n1 c v3.0.0\\n' ;;
  *) printf '0 agent v1.0.0\\n1 c v3.0.0\\n1 b v2.0.0\\n' ;;
esac
";

/// A program that prints its arguments, as `echo` does, and can be linked without shared libraries.
const ECHO: &str = "#include <stdio.h>
int main(int count, char **words) {
  for (int i = 1; i < count; i++) printf(\"%s \", words[i]);
  return 0;
}
";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes a stand-in for cargo, which knows four crates.
fn write_cargo(directory: &Path) {
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("cargo"), CARGO).unwrap();
    fs::set_permissions(directory.join("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(directory.join("LICENSE"), "the text of a licence").unwrap();
    let manifest = directory.join("Cargo.toml");
    let package = |name: &str, version: &str, source: Option<&str>| json!({"name": name, "version": version, "source": source, "license": "MIT", "manifest_path": manifest});
    let (registry, own) = (Some("registry"), None);
    let packages = [
        package("gateway", "1.0.0", own),
        package("agent", "1.0.0", own),
        package("b", "2.0.0", registry),
        package("c", "3.0.0", registry),
    ];
    fs::write(directory.join("metadata"), json!({"packages": packages}).to_string()).unwrap();
}

/// Runs a script of deploy with the programs of a directory.
fn run(script: &str, directory: &Path, seed: &str) -> Output {
    let path = std::env::var("PATH").unwrap();
    Command::new(repository().join("deploy").join(script))
        .arg("--programs")
        .arg(directory.join("programs"))
        .arg("--output")
        .arg(directory.join(format!("{script}-{seed}")))
        .env("PATH", format!("{}:{path}", directory.join("cargo").display()))
        // The order of sets in Python depends on it.
        .env("PYTHONHASHSEED", seed)
        .output()
        .unwrap()
}

/// Runs a script of deploy, and returns the content of the files that it writes.
fn build(script: &str, directory: &Path, seed: &str) -> BTreeMap<String, Vec<u8>> {
    let result = run(script, directory, seed);
    assert!(result.status.success(), "{script}: {}", String::from_utf8_lossy(&result.stderr));
    let output = directory.join(format!("{script}-{seed}"));
    let entries = fs::read_dir(output).unwrap().map(|entry| entry.unwrap());
    entries.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// Runs a script of deploy twice, and checks that the files are the same.
fn build_twice(script: &str, directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let [first, second] = ["1", "2"].map(|seed| build(script, directory, seed));
    assert!(first.len() >= 2 && first.keys().eq(second.keys()), "{:?}", first.keys());
    for (name, content) in &first {
        assert!(second[name] == *content, "{name} differs");
    }
    first
}

/// The lines of the list of a package: modes and paths.
fn contents(package: &Path) -> Vec<(String, String)> {
    let output = Command::new("dpkg-deb").arg("--contents").arg(package).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    text.lines().map(words).map(|words| (words[0].clone(), words[5].clone())).collect()
}

/// Returns a directory with a stand-in for cargo, and a folder for programs. Skips the test if one of the tools is missing.
fn workspace_or_skip(tools: &[&str]) -> Option<TempDir> {
    if let Some(missing) = tools.iter().find(|tool| !installed(tool)) {
        skipped(&format!("there is no {missing}"));
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    write_cargo(&directory.path().join("cargo"));
    fs::create_dir(directory.path().join("programs")).unwrap();
    Some(directory)
}

#[test]
fn images_and_packages_of_the_same_programs_are_the_same_bytes() {
    let tools = ["python3", "dpkg-deb", "dpkg-shlibdeps", "readelf", "objcopy"];
    let Some(directory) = workspace_or_skip(&tools) else { return };
    let path = |name: &str| directory.path().join(name);
    for name in ["kas", "agentk"] {
        // It prints its arguments in place of a manual page.
        fs::copy("/bin/echo", path("programs").join(name)).unwrap();
    }
    for script in ["image", "deb"] {
        build_twice(script, directory.path());
    }

    check_package(&path("deb-1"), "agentk", "agentk", "policy.example.yaml", &["agentk.1"]);
    // `man --directory` of the small program writes no pages.
    check_package(&path("deb-1"), "kas", "kas serve", "kas.example.yaml", &[]);
}

/// Checks the files, the unit and the scripts of the package of a program.
fn check_package(packages: &Path, name: &str, command: &str, example: &str, pages: &[&str]) {
    let mut debs = fs::read_dir(packages).unwrap().map(|entry| entry.unwrap().path());
    let package = debs.find(|path| path.to_string_lossy().contains(&format!("/{name}_"))).unwrap();
    let contents = contents(&package);
    let files = [
        ("-rwxr-xr-x", format!("./usr/bin/{name}")),
        ("-rw-r--r--", format!("./usr/lib/systemd/system/{name}.service")),
        ("-rw-r--r--", format!("./usr/lib/sysusers.d/{name}.conf")),
        ("-rw-r--r--", format!("./usr/share/bash-completion/completions/{name}")),
        ("-rw-r--r--", format!("./usr/share/doc/{name}/copyright")),
        ("-rw-r--r--", format!("./usr/share/doc/{name}/examples/{example}")),
    ];
    let pages = pages.iter().map(|page| ("-rw-r--r--", format!("./usr/share/man/man1/{page}.gz")));
    for (mode, file) in files.into_iter().chain(pages) {
        assert!(contents.contains(&(mode.to_owned(), file.clone())), "{mode} {file}: {contents:#?}");
    }

    let extracted = tempfile::tempdir().unwrap();
    let status =
        Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(extracted.path()).status().unwrap();
    assert!(status.success());
    let read = |file: &str| fs::read_to_string(extracted.path().join(file)).unwrap();
    let notices = read(&format!("usr/share/doc/{name}/copyright"));
    let has_text =
        notices.contains("b 2.0.0 (MIT)\nc 3.0.0 (MIT)\n") && notices.contains("the text of a licence");
    assert!(has_text, "{notices}");
    let unit = read(&format!("usr/lib/systemd/system/{name}.service"));
    assert!(unit.contains(&format!("ExecStart=/usr/bin/{command}")), "{unit}");
    let postinst = read("DEBIAN/postinst");
    assert!(postinst.contains(&format!("systemd-sysusers /usr/lib/sysusers.d/{name}.conf\n")), "{postinst}");
    // An update keeps the mode that the owner of the machine has given the directory.
    let directory = format!("  [ -d /etc/{name} ] || install -d -m 750 -g {name} /etc/{name}\n");
    assert!(postinst.contains(&directory), "{postinst}");
}

#[test]
fn static_archives_of_the_same_programs_are_the_same_bytes() {
    let tools = ["python3", "readelf", "objcopy", "cc", "sha256sum", "tar"];
    let Some(directory) = workspace_or_skip(&tools) else { return };
    let path = |name: &str| directory.path().join(name);
    fs::write(path("echo.c"), ECHO).unwrap();
    let link = |arguments: &[&str]| {
        let mut command = Command::new("cc");
        command.args(arguments).arg("-o").arg(path("programs/kas")).arg(path("echo.c"));
        command.status().unwrap().success() && fs::copy(path("programs/kas"), path("programs/agentk")).is_ok()
    };
    if !link(&["-static"]) {
        return skipped("the C library of this machine cannot be linked statically");
    }
    let files = build_twice("static", directory.path());

    let check =
        Command::new("sha256sum").arg("--check").arg("SHA256SUMS").current_dir(path("static-1")).output();
    let check = String::from_utf8(check.unwrap().stdout).unwrap();
    let archive = files.keys().find(|name| name.starts_with("agentk-") && name.ends_with(".tar.gz")).unwrap();
    assert_eq!(check.lines().count(), files.len() - 1, "{check}");
    assert!(check.contains(&format!("{archive}: OK\n")), "{check}");
    let status = Command::new("tar").args(["xf", archive]).current_dir(path("static-1")).status().unwrap();
    assert!(status.success());
    let root = path("static-1").join(archive.trim_end_matches(".tar.gz"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    assert_eq!(read("completion/agentk.bash"), "completion bash ");
    assert_eq!(read("man/man1/agentk.1"), "man ");
    assert!(read("LICENSE").contains("MIT License"), "{}", read("LICENSE"));
    let notices = read("THIRD-PARTY-LICENSES");
    assert!(
        notices.contains("b 2.0.0 (MIT)\nc 3.0.0 (MIT)\n") && notices.contains("Rich Felker"),
        "{notices}"
    );
    let bill: Value = serde_json::from_str(&read("agentk.cdx.json")).unwrap();
    let names: Vec<&str> = bill["components"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|component| component["name"].as_str())
        .collect();
    assert_eq!(names, ["b", "c", "libunwind", "musl"]);
    let output = Command::new(root.join("agentk")).arg("runs").output().unwrap();
    assert_eq!(output.stdout, b"runs ");

    assert!(link(&[]));
    let refused = run("static", directory.path(), "3");
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && error.contains("programs/kas needs ") && error.contains("libc."),
        "{error}"
    );
}
