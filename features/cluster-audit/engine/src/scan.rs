//! Finds the events in the bytes of an `EventList`, as they arrive.

/// The longest event without its objects and the ends of long texts, in bytes. At the level Metadata an event has one or two kilobytes.
const MAX_EVENT: usize = 128 << 10;
/// The longest value of an event, in bytes. A longer one is `null`: clients choose the number of their source addresses.
const MAX_VALUE: usize = 24 << 10;
/// The longest text of an event, in bytes of JSON: six for a byte that is kept, at most. The rest is skipped, so that a client cannot hide
/// a request by the length of its URL.
const MAX_TEXT: usize = 4 << 10;
/// The longest key or version that matters, in bytes. The beginning of a longer one is that of no known one.
const MAX_WORD: usize = 32;
/// The keys of an event whose values are skipped: a request or a response with its whole object, which may be a Secret.
const BODIES: [&[u8]; 2] = [b"requestObject", b"responseObject"];

/// The depth of brackets inside the list, inside its items, and inside an event.
const LIST: u32 = 1;
const ITEMS: u32 = 2;
const EVENT: u32 = 3;

/// Finds events. It needs the memory of one event, without its objects, whatever the list has.
#[expect(clippy::struct_excessive_bools, reason = "the place in the bytes: most combinations occur")]
#[derive(Debug, Default)]
pub struct EventScanner {
    /// The number of open brackets.
    depth: u32,
    in_string: bool,
    /// The next byte belongs to an escape.
    escaped: bool,
    /// The next string at this depth is a key.
    expects_key: bool,
    /// The string is kept in `word`.
    keeps_word: bool,
    word: Vec<u8>,
    key: ListKey,
    is_list: bool,
    is_version: bool,
    in_items: bool,
    /// The value of the next key of the event is skipped.
    is_body: bool,
    /// The bytes are those of a body.
    skips: bool,
    event: Vec<u8>,
    /// The beginning of the present value of the event.
    value: Option<usize>,
    /// The bytes of the present string of the event, also those that are skipped.
    text: usize,
    is_cut: bool,
    is_too_large: bool,
}

/// A key of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListKey {
    Kind,
    Version,
    Items,
    #[default]
    Other,
}

/// An event of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned<'a> {
    /// An event.
    Event {
        /// The JSON. It is not validated, and the values of its bodies and values that are too long are `null`.
        json: &'a [u8],
        /// A value was too long, or a text was, which has only its beginning.
        is_cut: bool,
    },
    /// The event was too large, and is dropped.
    TooLarge,
}

/// The error of bytes that are no list of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// Another kind, or another version.
    #[error("this is no EventList of audit.k8s.io/v1")]
    NotAnEventList,
    /// The brackets do not match, or something else than an event is in the list.
    #[error("the list is no JSON, or has other items than events")]
    Malformed,
    /// The bytes end within the list.
    #[error("the list ends too early")]
    Incomplete,
}

impl EventScanner {
    /// Reads the next bytes, and passes on each event that is complete. After an error it must not be used any more.
    ///
    /// # Errors
    ///
    /// The bytes are no list of events. Those before the error were passed on.
    pub fn feed(&mut self, chunk: &[u8], mut on_event: impl FnMut(Scanned<'_>)) -> Result<(), ScanError> {
        let mut next = 0;
        // The bytes of the event before this index were copied or skipped.
        let mut copied = 0;
        while let Some(&byte) = chunk.get(next) {
            if self.in_string {
                let length = self.string(&chunk[next..])?;
                if self.copies() {
                    // The quotation mark at the end is not part of the text.
                    let end = next + length - usize::from(!self.in_string);
                    self.copy_text(&chunk[next..end]);
                    copied = end;
                }
                next += length;
                continue;
            }
            next += 1;
            match byte {
                b'"' => {
                    self.begin_string()?;
                    if self.copies() {
                        self.copy(&chunk[copied..next]);
                        copied = next;
                    }
                }
                b'{' | b'[' => {
                    self.open(byte)?;
                    if self.in_items && self.depth == EVENT {
                        copied = next - 1;
                    }
                }
                b'}' | b']' => {
                    if self.is_event() {
                        if !self.skips {
                            self.copy(&chunk[copied..next - 1]);
                        }
                        (self.skips, self.value) = (false, None);
                        self.copy(&[byte]);
                        on_event(if self.is_too_large {
                            Scanned::TooLarge
                        } else {
                            Scanned::Event { json: &self.event, is_cut: self.is_cut }
                        });
                        self.event.clear();
                        copied = next;
                    }
                    self.close()?;
                }
                b',' if self.is_event() => {
                    if !self.skips {
                        self.copy(&chunk[copied..next - 1]);
                    }
                    copied = next - 1;
                    (self.skips, self.value, self.expects_key) = (false, None, true);
                }
                b',' if self.depth == LIST => (self.expects_key, self.key) = (true, ListKey::Other),
                b':' if self.is_event() && !self.skips => {
                    self.expects_key = false;
                    self.copy(&chunk[copied..next]);
                    copied = next;
                    self.value = Some(self.event.len());
                    if std::mem::take(&mut self.is_body) {
                        self.copy(b"null");
                        self.skips = true;
                    }
                }
                b':' if self.depth == LIST => self.expects_key = false,
                b' ' | b'\n' | b'\r' | b'\t' => {}
                // Anything else is within a value, or the list has begun or ended.
                _ if self.depth == 0 || (self.in_items && self.depth == ITEMS && byte != b',') => {
                    return Err(ScanError::Malformed);
                }
                _ => {}
            }
        }
        if self.copies() {
            self.copy(&chunk[copied..]);
        }
        Ok(())
    }

    /// Ends the list.
    ///
    /// # Errors
    ///
    /// The list is not complete.
    pub fn finish(self) -> Result<(), ScanError> {
        if self.depth == 0 && self.is_list && self.is_version && !self.in_string {
            Ok(())
        } else {
            Err(ScanError::Incomplete)
        }
    }

    /// Returns whether the next byte is directly inside an event, and not in a value of it.
    fn is_event(&self) -> bool {
        self.in_items && self.depth == EVENT
    }

    /// Returns whether the next byte is inside an event, and not in a body.
    fn copies(&self) -> bool {
        self.in_items && self.depth >= EVENT && !self.skips
    }

    fn begin_string(&mut self) -> Result<(), ScanError> {
        if self.depth == 0 || (self.in_items && self.depth == ITEMS) {
            return Err(ScanError::Malformed);
        }
        (self.in_string, self.text) = (true, 0);
        let is_value = self.depth == LIST && self.key != ListKey::Other;
        self.keeps_word = (self.expects_key && (self.depth == LIST || self.is_event())) || is_value;
        self.word.clear();
        Ok(())
    }

    /// Reads bytes of a string, and returns their number.
    fn string(&mut self, bytes: &[u8]) -> Result<usize, ScanError> {
        if std::mem::take(&mut self.escaped) {
            self.keep(&bytes[..1]);
            return Ok(1);
        }
        let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\'));
        let Some(end) = end else {
            self.keep(bytes);
            return Ok(bytes.len());
        };
        self.keep(&bytes[..end]);
        if bytes[end] == b'\\' {
            self.escaped = true;
            self.keep(b"\\");
        } else {
            self.in_string = false;
            if self.keeps_word {
                self.end_word()?;
            }
        }
        Ok(end + 1)
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.keeps_word {
            let free = MAX_WORD.saturating_sub(self.word.len());
            self.word.extend_from_slice(&bytes[..bytes.len().min(free)]);
        }
    }

    /// Looks at a key of the list or of an event, or at the kind or the version of the list.
    fn end_word(&mut self) -> Result<(), ScanError> {
        match (self.expects_key, self.key) {
            (true, _) if self.depth == LIST => {
                self.key = match &*self.word {
                    b"kind" => ListKey::Kind,
                    b"apiVersion" => ListKey::Version,
                    b"items" => ListKey::Items,
                    _ => ListKey::Other,
                };
            }
            (true, _) => self.is_body = BODIES.contains(&&*self.word),
            (false, ListKey::Kind) if self.word == b"EventList" => self.is_list = true,
            (false, ListKey::Version) if self.word == b"audit.k8s.io/v1" => self.is_version = true,
            (false, ListKey::Kind | ListKey::Version) => return Err(ScanError::NotAnEventList),
            (false, ListKey::Items | ListKey::Other) => {}
        }
        Ok(())
    }

    fn open(&mut self, byte: u8) -> Result<(), ScanError> {
        match self.depth {
            0 if byte != b'{' || self.is_list => return Err(ScanError::Malformed),
            LIST if self.key == ListKey::Items => {
                // API servers send the kind and the version first.
                if !self.is_list || !self.is_version {
                    return Err(ScanError::NotAnEventList);
                }
                self.in_items = byte == b'[';
            }
            ITEMS if self.in_items => {
                if byte != b'{' {
                    return Err(ScanError::Malformed);
                }
                (self.is_too_large, self.is_cut, self.is_body, self.skips) = (false, false, false, false);
                self.value = None;
                self.event.clear();
            }
            _ => {}
        }
        self.depth += 1;
        self.expects_key = self.depth == LIST || self.is_event();
        Ok(())
    }

    fn close(&mut self) -> Result<(), ScanError> {
        self.depth = self.depth.checked_sub(1).ok_or(ScanError::Malformed)?;
        if self.depth == LIST {
            self.in_items = false;
        }
        self.expects_key = false;
        Ok(())
    }

    /// Copies bytes of a string, unless it is too long.
    fn copy_text(&mut self, bytes: &[u8]) {
        let free = MAX_TEXT.saturating_sub(self.text);
        self.copy(&bytes[..bytes.len().min(free)]);
        let was_short = self.text <= MAX_TEXT;
        self.text = self.text.saturating_add(bytes.len());
        if was_short && self.text > MAX_TEXT {
            self.is_cut = true;
            if !self.is_too_large && !self.skips {
                let start = self.event.len() - MAX_TEXT;
                self.event.truncate(start + whole_characters(&self.event[start..]));
            }
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        let length = self.event.len() + bytes.len();
        match self.value {
            _ if self.is_too_large => {}
            Some(start) if length - start > MAX_VALUE => {
                self.event.truncate(start);
                self.event.extend_from_slice(b"null");
                (self.skips, self.is_cut) = (true, true);
            }
            None if length > MAX_EVENT => {
                self.is_too_large = true;
                self.event.clear();
            }
            Some(_) | None => self.event.extend_from_slice(bytes),
        }
    }
}

/// Returns the length of the whole characters at the beginning of a cut JSON string.
fn whole_characters(text: &[u8]) -> usize {
    let mut end = 0;
    loop {
        let length = match text[end..] {
            [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..] => {
                // The first half of a surrogate pair (RFC 8259 section 7) needs the second one.
                let is_pair = text[end..].len() >= 12;
                if is_pair { 6 } else { return end }
            }
            [b'\\', b'u', ..] => 6,
            [b'\\', ..] => 2,
            [0xc0..=0xdf, ..] => 2,
            [0xe0..=0xef, ..] => 3,
            [0xf0..=0xff, ..] => 4,
            [_, ..] => 1,
            [] => return end,
        };
        if end + length > text.len() {
            return end;
        }
        end += length;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Feeds a text in chunks of some bytes. Returns the events.
    fn scan(text: &str, size: usize) -> Result<Vec<Option<Value>>, ScanError> {
        let (mut scanner, mut events) = (EventScanner::default(), Vec::new());
        for chunk in text.as_bytes().chunks(size) {
            scanner.feed(chunk, |scanned| {
                events.push(match scanned {
                    Scanned::Event { json, .. } => Some(serde_json::from_slice(json).unwrap()),
                    Scanned::TooLarge => None,
                });
            })?;
        }
        scanner.finish()?;
        Ok(events)
    }

    fn list(items: &[Value]) -> String {
        let items: Vec<String> = items.iter().map(Value::to_string).collect();
        let items = items.join(",\n");
        format!(
            r#"{{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{{"a":["]}}"]}},"items":[{items}]}}"#
        )
    }

    #[test]
    fn events_come_out_without_their_objects_in_chunks_of_any_size() {
        let secret = json!({"data": {"password": "c2VjcmV0", "b": [1, {"items": "}\\\""}]}});
        let events = [
            json!({"verb": "create", "requestObject": secret, "responseObject": secret, "n": 1.5}),
            json!({"requestObject": "a \"text\"", "verb": "get"}),
            json!({"user": {"requestObject": "stays: it is no body"}, "responseObject": null}),
            json!({}),
        ];
        let expected = [
            json!({"verb": "create", "requestObject": null, "responseObject": null, "n": 1.5}),
            json!({"requestObject": null, "verb": "get"}),
            json!({"user": {"requestObject": "stays: it is no body"}, "responseObject": null}),
            json!({}),
        ];
        let (text, expected) = (list(&events), expected.map(Some).to_vec());
        for size in [1, 2, 3, 7, 64, text.len()] {
            assert_eq!(scan(&text, size), Ok(expected.clone()), "{size}");
        }
        let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&text).unwrap());
        // Its keys are sorted, so that the kind is after the items.
        assert_eq!(scan(&pretty.unwrap(), 5), Err(ScanError::NotAnEventList));
    }

    #[test]
    fn object_of_any_size_needs_no_memory() {
        let object = json!({"data": "x".repeat(10 << 20)});
        let text = list(&[json!({"requestObject": object, "verb": "create"})]);
        let mut scanner = EventScanner::default();
        for chunk in text.as_bytes().chunks(16 << 10) {
            scanner.feed(chunk, |_| {}).unwrap();
            assert!(scanner.event.capacity() <= 2 * MAX_EVENT);
        }
        assert_eq!(scan(&text, 16 << 10).unwrap().len(), 1);
    }

    #[test]
    fn event_that_is_too_large_is_dropped_alone() {
        let keys = (0..MAX_EVENT / 1000).map(|key| (key.to_string(), json!("x".repeat(1000))));
        let large = Value::Object(keys.collect());
        let text = list(&[json!({"n": 1}), large, json!({"n": 2})]);
        for size in [1000, text.len()] {
            assert_eq!(scan(&text, size), Ok(vec![Some(json!({"n": 1})), None, Some(json!({"n": 2}))]));
        }
    }

    #[test]
    fn value_that_is_too_long_is_null() {
        let addresses = vec!["192.0.2.1"; MAX_VALUE / 10];
        let text = list(&[json!({"a": vec![1; MAX_VALUE], "n": 1, "sourceIPs": addresses}), json!({"n": 2})]);
        let expected = [json!({"a": null, "n": 1, "sourceIPs": null}), json!({"n": 2})].map(Some);
        for size in [1, 1000, text.len()] {
            assert_eq!(scan(&text, size), Ok(expected.to_vec()), "{size}");
        }
    }

    #[test]
    fn long_text_is_cut_after_a_whole_character() {
        // Ampersands of a URL, as Go encodes them, and characters of each length.
        for character in ["\\u0026", "\\ud83d\\ude00", "\\\\", "\\\"", "ä", "€", "😀", "x"] {
            for before in 0..12 {
                let long = format!("{}{}", "x".repeat(before), character.repeat(5000));
                let event = format!(
                    r#"{{"verb":"get","requestURI":"{long}","user":{{"{long}":["{long}",1]}},"n":2}}"#
                );
                let text = list(&[]).replace("[]}", &format!("[{event},{{}}]}}"));
                let whole: String = serde_json::from_str(&format!("\"{long}\"")).unwrap();
                for size in [1, 1000, text.len()] {
                    let events = scan(&text, size).unwrap();
                    let [Some(event), Some(_)] = &events[..] else { panic!("{character}") };
                    let cut = event["requestURI"].as_str().unwrap();
                    assert!(whole.starts_with(cut) && cut.len() < whole.len(), "{character} {before}");
                    assert!(cut.len() + 16 > MAX_TEXT * whole.len() / long.len(), "{character} {before}");
                    assert_eq!((&event["user"][cut][0], &event["n"]), (&json!(cut), &json!(2)));
                }
            }
        }
        let mut cuts = Vec::new();
        let text = list(&[json!({"a": "x".repeat(MAX_TEXT + 1)}), json!({"a": "x".repeat(MAX_TEXT)})]);
        let mut scanner = EventScanner::default();
        let on_event =
            |scanned: Scanned<'_>| cuts.push(matches!(scanned, Scanned::Event { is_cut: true, .. }));
        scanner.feed(text.as_bytes(), on_event).unwrap();
        assert_eq!(cuts, [true, false]);
    }

    #[test]
    fn anything_but_a_list_of_events_is_refused() {
        use ScanError::{Incomplete, Malformed, NotAnEventList};

        let whole = list(&[json!({"a": 1})]);
        for (text, expected) in [
            ("", Incomplete),
            ("{}", Incomplete),
            ("[]", Malformed),
            ("1", Malformed),
            ("\"kind\"", Malformed),
            ("}", Malformed),
            (&whole[..whole.len() - 1], Incomplete),
            (&format!("{whole}{whole}"), Malformed),
            (&format!("{whole},"), Malformed),
            (&whole.replace("EventList", "PodList"), NotAnEventList),
            (&whole.replace("io/v1", "io/v1beta1"), NotAnEventList),
            (&whole.replace(r#"{"a":1}"#, "1"), Malformed),
            (&whole.replace(r#"{"a":1}"#, "[{}]"), Malformed),
            (&whole.replace(r#"{"a":1}"#, "\"a\""), Malformed),
            (r#"{"items":[{"verb":"get"}],"kind":"EventList"}"#, NotAnEventList),
        ] {
            assert_eq!(scan(text, 4).unwrap_err(), expected, "{text}");
        }
        assert_eq!(scan(&list(&[]), 4), Ok(Vec::new()));
        assert_eq!(scan(&list(&[]).replace("[]}", "null}"), 4), Ok(Vec::new()));
    }
}
