//! Section `observability.audit`.

use std::fs;

use kas_core::audit::check;

use crate::config::Config;

#[test]
fn mistake_in_the_section_is_refused_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kas.yaml");
    let checked = |audit: &str| {
        fs::write(&file, format!("identity: {{file: i}}\nobservability:\n  audit: {audit}\n")).unwrap();
        let result = Config::read(&file).and_then(|config| check(&file, &config.observability.audit));
        result.map_err(|error| error.to_string().replace(&format!("{}/", directory.path().display()), ""))
    };
    for valid in ["{}", "{sink: none}", "{sink: stdout}", "{sink: file, file: audit.log, max_files: 1}"] {
        assert_eq!(checked(valid), Ok(()), "{valid}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "a check creates no file");
    for (audit, expected) in [
        ("{sink: file}", "kas.yaml: observability.audit.file: sink: file needs"),
        ("{file: a}", "kas.yaml:3:17: observability.audit.file: has no effect without sink: file"),
        ("{sink: file, file: none/a}", "kas.yaml:3:29: observability.audit.file: none/a: the directory"),
        ("{sink: file, file: .}", "it is not a regular file"),
        ("{sink: syslog}", "kas.yaml:3:17: observability.audit.sink: unknown variant"),
        ("{sink: stdout, max_files: 0}", "observability.audit.max_files: 0 is not between"),
        ("{sink: stdout, max_file_size: 1}", "observability.audit.max_file_size: 1 is not between"),
    ] {
        let error = checked(audit).unwrap_err();
        assert!(error.contains(expected), "{audit}: {error}");
    }
}
