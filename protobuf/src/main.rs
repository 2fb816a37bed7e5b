//! Writes the Rust of the messages in `features/*/*/proto`, and the hashes of both, which a test of `structure` compares.

use std::{error::Error, fs, path::Path};

use sha2::{Digest as _, Sha256};

/// The crates with messages: folder, package of the `.proto` file, and the fields that are in a `Box`.
const CRATES: [(&str, &str, &[&str]); 2] = [
    ("features/alerts/engine", "hubble", &["hubble.GetFlowsResponse.content.flow"]),
    ("features/gitlab/wire", "gitlab", &[]),
];
/// The Rust of the messages, in the folder of the crate.
const GENERATED: &str = "src/messages/generated.rs";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("there is no folder above this one")?;
    for (folder, package, boxed) in CRATES {
        let folder = root.join(folder);
        generate(&folder, package, boxed)?;
        let hashes = [&*format!("proto/{package}.proto"), GENERATED].map(|file| hash_line(&folder, file));
        fs::write(folder.join("proto/SHA256SUMS"), hashes.into_iter().collect::<Result<String, _>>()?)?;
    }
    Ok(())
}

/// Writes the messages of a package.
fn generate(folder: &Path, package: &str, boxed: &[&str]) -> Result<(), Box<dyn Error>> {
    let generated = folder.join(GENERATED);
    let output = generated.parent().ok_or("the file has no folder")?;
    let files = protox::compile([format!("{package}.proto")], [folder.join("proto")])?;
    let mut config = prost_build::Config::new();
    boxed.iter().fold(&mut config, |config, field| config.boxed(field));
    config.bytes(["."]).out_dir(output).compile_fds(files)?;
    Ok(fs::rename(output.join(format!("{package}.rs")), generated)?)
}

/// Returns a line in the format of `sha256sum`.
fn hash_line(folder: &Path, file: &str) -> Result<String, std::io::Error> {
    let digest = Sha256::digest(fs::read(folder.join(file))?);
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{digits}  {file}\n"))
}
