//! Section `observability.tracing`.

use std::fs;

use kas_core::traces::settings;

use crate::config::Config;

#[test]
fn error_has_file_line_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    let read = |section: &str| {
        let text = format!("identity: {{file: i}}\nobservability:\n  tracing:\n{section}");
        fs::write(&file, text).unwrap();
        let settings = Config::read(&file).and_then(|config| settings(&file, &config.observability.tracing));
        let settings = settings.map(|settings| settings.is_some()).map_err(|error| error.to_string());
        settings.map_err(|error| error.replace(&format!("{}/", directory.path().display()), ""))
    };
    fs::write(directory.path().join("token"), "secret").unwrap();
    fs::write(directory.path().join("empty"), "\n").unwrap();
    let collector = "    otlp_endpoint: http://collector:4318\n";
    assert_eq!(read("    sample_ratio: 0.5\n"), Ok(false));
    assert_eq!(read(collector), Ok(true));
    assert_eq!(read(&format!("{collector}    otlp_token_secret_file: token\n")), Ok(true));
    for (section, expected) in [
        (
            "    otlp_endpoint: collector:4318\n",
            "kas.yaml:4:20: observability.tracing.otlp_endpoint: is not a URL",
        ),
        (
            "    otlp_endpoint: https://me:secret@c\n",
            "kas.yaml:4:20: observability.tracing.otlp_endpoint: must not",
        ),
        (
            "    sample_ratio: 2\n",
            "kas.yaml:4:19: observability.tracing.sample_ratio: must be a number from 0",
        ),
        (
            "    otlp_token_secret_file: token\n",
            "kas.yaml:4:29: observability.tracing.otlp_token_secret_file: has no effect without otlp_endpoint",
        ),
        (
            &format!("{collector}    otlp_token_secret_file: empty\n"),
            "kas.yaml:5:29: observability.tracing.otlp_token_secret_file: empty: holds no token",
        ),
        (
            &format!("{collector}    otlp_ca_certificate_file: absent\n"),
            "kas.yaml:5:31: observability.tracing.otlp_ca_certificate_file: absent: the file does not exist",
        ),
        (
            &format!("{collector}    otlp_ca_certificate_file: token\n"),
            "kas.yaml:5:31: observability.tracing.otlp_ca_certificate_file: token: holds no PEM certificate",
        ),
    ] {
        let error = read(section).unwrap_err();
        assert!(error.starts_with(expected) && !error.contains("secret@"), "{error}");
    }
}
