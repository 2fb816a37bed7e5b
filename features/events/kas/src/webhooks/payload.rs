//! The body of a delivery.

use proto::events::{Event, EventAgent, EventContent, Severity};
use serde_json::json;
use store::LoggedEvent;

use super::{gitlab_alert, neutral::neutral};
use crate::{ListedEvent, WebhookFormat};

/// Returns the body with an event.
pub(super) fn body(format: WebhookFormat, logged: &LoggedEvent) -> Vec<u8> {
    let value = match format {
        WebhookFormat::Json => json!({
            "type": format!("kas.{}", logged.event.content.kind),
            "timestamp": humantime::format_rfc3339_millis(logged.event.time).to_string(),
            "data": ListedEvent::from(logged),
        }),
        WebhookFormat::Slack => json!({"text": slack(&logged.event)}),
        WebhookFormat::GitlabAlert => gitlab_alert::payload(logged),
    };
    serde_json::to_vec(&value).expect("it has keys that are text")
}

/// Returns the text of a message: `:warning: *drift* of *production*, shop/web: …`.
fn slack(Event { agent, content, .. }: &Event) -> String {
    let EventContent { kind, severity, subject, message, details: _ } = content;
    let sign = match severity {
        Severity::Info => ":information_source:",
        Severity::Warning => ":warning:",
        Severity::Error => ":rotating_light:",
    };
    let agent = agent.as_ref().map(|EventAgent { name, .. }| format!(" of *{name}*")).unwrap_or_default();
    let parts = [&subject.project, &subject.environment, &subject.namespace, &subject.kind, &subject.name];
    let parts: Vec<&str> = parts.into_iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    let subject = if parts.is_empty() { String::new() } else { format!(", {}", escape(&parts.join(" "))) };
    format!("{sign} *{kind}*{agent}{subject}: {}", escape(message))
}

/// Escapes what has a meaning in messages of Slack, such as `<!channel>`, and of servers like it.
fn escape(text: &str) -> String {
    neutral(&text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proto::{
        AgentId,
        events::{EventKind, EventSubject},
    };
    use serde_json::Value;
    use store::EventPosition;

    use super::*;

    fn logged(message: &str) -> LoggedEvent {
        let subject = EventSubject { project: "shop/web".to_owned(), ..EventSubject::default() };
        let content = EventContent::new(EventKind::Drift, Severity::Warning, message).with_subject(subject);
        let agent = EventAgent {
            id: AgentId(7),
            name: "production".parse().unwrap(),
            project_id: None,
            project_path: None,
        };
        LoggedEvent {
            position: EventPosition { millis: 17, sequence: 2 },
            key: "key".into(),
            event: Event {
                time: SystemTime::UNIX_EPOCH + Duration::from_millis(1500),
                agent: Some(agent),
                content,
            },
        }
    }

    #[test]
    fn json_has_the_event_with_its_type_and_time() {
        let body: Value = serde_json::from_slice(&body(WebhookFormat::Json, &logged("2 objects"))).unwrap();
        let expected = json!({
            "type": "kas.drift",
            "timestamp": "1970-01-01T00:00:01.500Z",
            "data": {
                "id": "17-2",
                "time": "1970-01-01T00:00:01.500Z",
                "agent": {"id": 7, "name": "production"},
                "kind": "drift",
                "severity": "warning",
                "subject": {"project": "shop/web"},
                "message": "2 objects",
            },
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn message_mentions_nobody() {
        let text = |message: &str| {
            let body = body(WebhookFormat::Slack, &logged(message));
            let body: Value = serde_json::from_slice(&body).unwrap();
            let text = body["text"].as_str().unwrap();
            text.strip_prefix(":warning: *drift* of *production*, shop/web: ").unwrap().to_owned()
        };
        for (message, expected) in [
            (
                "<!channel> & <http://a|b> *x*",
                "&lt;!channel&gt; &amp; &lt;http://a|b&gt; \u{200b}*x\u{200b}*",
            ),
            ("@channel @all ana@example.com", "@\u{200b}channel @\u{200b}all ana@\u{200b}example.com"),
            ("[log in](https://evil.example)", "[log in]\u{200b}(https://evil.example)"),
            ("![](https://evil.example/x.png)", "!\u{200b}[]\u{200b}(https://evil.example/x.png)"),
            ("[a][b] [b]: https://evil.example", "[a]\u{200b}[b] [b]\u{200b}: https://evil.example"),
            ("web[0] is 1 (of 2)!", "web[0] is 1 (of 2)!"),
        ] {
            assert_eq!(text(message), expected);
        }
    }
}
