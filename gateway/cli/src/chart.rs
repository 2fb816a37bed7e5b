//! The values of the chart of agentk that commands take as options. They are printed in YAML and in shell commands.

use std::path::Path;

use http::Uri;

/// The longest token of an agent, in bytes, which is the limit of agentk.
pub const MAX_AGENT_TOKEN: usize = 4096;
/// The image of the chart's default values.
pub const DEFAULT_IMAGE: &str = concat!("agentk:", env!("CARGO_PKG_VERSION"));

/// Parses the address of kas for agents: `ws(s)://host[:port][/prefix]`.
///
/// # Errors
///
/// It is another URL, or has characters that change a command.
pub fn kas_address(text: &str) -> Result<String, String> {
    let valid = || {
        let uri: Uri = text.parse().ok()?;
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b":/.-_~[]".contains(&b));
        (plain && matches!(uri.scheme_str(), Some("ws" | "wss")) && !uri.host()?.is_empty()).then_some(())
    };
    valid().map(|()| text.to_owned()).ok_or_else(|| "write it like wss://kas.example.com:8150".to_owned())
}

/// Parses the name of a namespace.
///
/// # Errors
///
/// It is not the exact name of one namespace.
pub fn namespace(text: &str) -> Result<String, String> {
    let scope = proto::agent_configuration::Scope::new(vec![text.to_owned()]);
    scope.map(|_| text.to_owned()).map_err(|_| "write the exact name of a namespace".to_owned())
}

/// Parses the reference of an image.
///
/// # Errors
///
/// It is empty, or has characters that no reference has.
pub fn image(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"./:@-_".contains(&b));
    let valid = plain && !text.is_empty();
    valid.then(|| text.to_owned()).ok_or_else(|| "write it like registry.example.com/agentk:0.2.0".to_owned())
}

/// Returns the flags of helm for an image, or none for the default.
pub fn image_flags(image: &str) -> Vec<String> {
    if image == DEFAULT_IMAGE {
        return Vec::new();
    }
    let set = |flag: &str, value: String| [flag.to_owned(), value];
    let (repository, rest) = match (image.split_once('@'), image.rsplit_once(':')) {
        (Some((repository, digest)), _) => (repository, Some(set("--set", format!("image.digest={digest}")))),
        (None, Some((repository, tag))) if !tag.contains('/') => {
            (repository, Some(set("--set-string", format!("image.tag={tag}"))))
        }
        (None, _) => (image, None),
    };
    let repository = set("--set", format!("image.repository={repository}"));
    repository.into_iter().chain(rest.into_iter().flatten()).collect()
}

/// Returns the argument of `helm --set-file` for a key and a path. Helm ends a value at a comma.
pub fn file_value(key: &str, file: &Path) -> String {
    let file = file.display().to_string().replace('\\', "\\\\").replace(',', "\\,");
    format!("{key}={file}")
}

/// Returns whether a text can be the token of an agent: visible ASCII that needs no escape in YAML.
pub fn is_agent_token(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\');
    (1..=MAX_AGENT_TOKEN).contains(&text.len()) && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_becomes_values_of_the_chart() {
        for (image, expected) in [
            (DEFAULT_IMAGE, ""),
            ("r.test:5000/agentk", "--set image.repository=r.test:5000/agentk"),
            ("r.test/agentk:2", "--set image.repository=r.test/agentk --set-string image.tag=2"),
            ("r/agentk@sha256:ab", "--set image.repository=r/agentk --set image.digest=sha256:ab"),
        ] {
            assert_eq!(image_flags(image).join(" "), expected, "{image}");
        }
    }

    #[test]
    fn value_that_would_change_a_command_is_refused() {
        for bad in [
            "https://kas",
            "kas:8150",
            "wss://",
            "wss://kas\"",
            "wss://kas/$(id)",
            "wss://kas/a b",
            "wss://u@kas",
            "wss://kas,config.token=a",
        ] {
            assert!(kas_address(bad).is_err(), "{bad}");
        }
        for bad in ["", "a b", "a\nb", "a\"", "a\\", &"x".repeat(MAX_AGENT_TOKEN + 1)] {
            assert!(!is_agent_token(bad), "{bad:?}");
        }
        assert!(is_agent_token("glagent-A_b-9"));
        assert!(namespace("A").is_err() && namespace("kube system").is_err() && namespace("").is_err());
        assert!(image("").is_err() && image("a b").is_err() && image("a\nb: c").is_err());
    }
}
