//! Prints the health of objects: `verdict [FILE]...`, or from the standard input.
//!
//! The files have objects in YAML or JSON, several in one file if `---` or a `List` separates them. Each line has the health, the kind and
//! name, and the reason. The time is the newest one in the object, because an object in a file is as old as the file.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program of the command line")]

use std::{
    env, fs,
    io::{self, Read as _},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use object_health::{AssessmentContext, assess, is_built_in};
use serde_json::Value;

fn main() -> ExitCode {
    let files: Vec<String> = env::args().skip(1).collect();
    let texts = match files.as_slice() {
        [] => vec![("standard input".to_owned(), standard_input())],
        files => files.iter().map(|file| (file.clone(), fs::read_to_string(file))).collect(),
    };
    let mut result = ExitCode::SUCCESS;
    for (name, text) in texts {
        let objects = text.map_err(|error| error.to_string()).and_then(|text| objects(&text));
        match objects {
            Ok(objects) => objects.iter().for_each(print),
            Err(error) => {
                eprintln!("{name}: {error}");
                result = ExitCode::FAILURE;
            }
        }
    }
    result
}

fn standard_input() -> io::Result<String> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map(|_| text)
}

fn objects(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    let objects = documents.into_iter().flat_map(|document| match document["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![document],
    });
    Ok(objects.filter(Value::is_object).collect())
}

fn print(object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let context = AssessmentContext { now: newest_time(object), has_status: !is_built_in(group), rule: None };
    let assessment = assess(object, context);
    let reason = assessment.reason.split_whitespace().collect::<Vec<_>>().join(" ");
    println!("{:<11} {}/{} {reason}", assessment.health, text("/kind"), text("/metadata/name"));
}

/// Returns the newest time in an object, or the time of the clock if it has none.
fn newest_time(object: &Value) -> SystemTime {
    let mut newest = None;
    let mut next = vec![object];
    while let Some(value) = next.pop() {
        match value {
            Value::String(text) => newest = newest.max(humantime::parse_rfc3339_weak(text).ok()),
            Value::Array(list) => next.extend(list),
            Value::Object(fields) => next.extend(fields.values()),
            _ => {}
        }
    }
    newest.map_or_else(SystemTime::now, |newest| newest + Duration::from_secs(1))
}
