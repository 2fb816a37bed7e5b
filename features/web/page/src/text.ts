/** Texts of a cluster, which anybody may have written. They are shown as text, and never change how other text is shown. */

/** Control characters other than tab and newline, and characters that change the direction of text or are invisible. */
const DECEPTIVE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/** Returns a text in which deceptive characters are visible, of at most `limit` characters. */
export function plain(text: string, limit = 4096): string {
  const cut = text.length > limit ? `${text.slice(0, limit)}…` : text;
  return cut.replace(DECEPTIVE, (character) => {
    const code = character.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
    return `⟨U+${code}⟩`;
  });
}

/** The longest piece of a text that never breaks, in characters. */
const MAX_PIECE = 28;

/** A part of a text that is in one line, if it is whole. A line may end after it if it `breaks`. */
export interface Piece {
  text: string;
  isWhole: boolean;
  breaks: boolean;
}

/** Returns the pieces of a text: words and the spaces between them, and the parts of a longer word, which end with punctuation. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  // Words that are short enough are one piece with the spaces around them.
  let whole = "";
  for (const word of text.split(/(\s+)/)) {
    if (word.length <= MAX_PIECE) {
      whole += word;
      continue;
    }
    if (whole !== "") found.push({ text: whole, isWhole: true, breaks: false });
    whole = "";
    for (const part of word.split(/(?<=[-./:@_,=?&])/)) {
      found.push({ text: part, isWhole: part.length <= MAX_PIECE, breaks: true });
    }
  }
  if (whole !== "") found.push({ text: whole, isWhole: true, breaks: false });
  return found;
}

/** Returns the age of a time, as kubectl prints it: `5s`, `3m10s`, `2h`, `4d`. */
export function age(time: string | undefined, now: number): string {
  const then = time === undefined ? Number.NaN : Date.parse(time);
  if (Number.isNaN(then)) return "";
  const seconds = Math.max(0, Math.floor((now - then) / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 120) return `${seconds}s`;
  if (minutes < 10) return seconds % 60 ? `${minutes}m${seconds % 60}s` : `${minutes}m`;
  if (hours < 3) return `${minutes}m`;
  if (hours < 48) return `${hours}h`;
  return `${Math.floor(hours / 24)}d`;
}

/** Returns an address that may become a link, or `null`: only `https` (CVE-2022-31035 is a link with `javascript:`). */
export function safeLink(text: string): string | null {
  try {
    const url = new URL(text);
    return url.protocol === "https:" && url.username === "" && url.password === "" ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * Returns the host of a link, or `null` if the text of the link is this host, or an address with it. A text may name another host than
 * that of its link.
 */
export function hiddenHost(text: string, link: string): string | null {
  const { host } = new URL(link);
  const shown = safeLink(text);
  return text === host || (shown !== null && new URL(shown).host === host) ? null : host;
}

/** Returns a text with a capital at its beginning. */
export function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * Returns an argument of a shell command, or `null` for a text that a program or a shell might take for something else: one that begins
 * as an option, or has quotes, backslashes or characters that are not shown.
 */
export function shellArgument(text: string): string | null {
  if (text === "" || text.startsWith("-") || /['\\\s\u2018-\u201b]/.test(text) || plain(text) !== text)
    return null;
  return /^[A-Za-z0-9_./:-]+$/.test(text) ? text : `'${text}'`;
}

/** The kind and the name of an object, for a command. */
interface Named {
  group: string;
  version: string;
  kind: string;
  namespace: string;
  name: string;
}

/** The names of kinds, and those of groups, versions and namespaces (RFC 1123). */
const KIND = /^[A-Za-z][A-Za-z0-9-]*$/;
const LABELS = /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/;

/** Returns the command of kubectl that prints an object, or `null` if the API server can have no object with these names. */
export function kubectlCommand({ group, version, kind, namespace, name }: Named): string | null {
  const isName = (text: string) => text === "" || LABELS.test(text);
  if (!KIND.test(kind) || ![group, version, namespace].every(isName)) return null;
  const argument = name.includes("/") ? null : shellArgument(name);
  if (argument === null) return null;
  const type = group === "" ? kind : `${kind}.${version}.${group}`;
  const flags = namespace === "" ? "" : ` --namespace ${namespace}`;
  return `kubectl get${flags} --output yaml -- ${type} ${argument}`;
}

/** Returns a value of a Secret as text, or its length where it is none. */
export function decodeSecret(base64: string): string {
  try {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    try {
      return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      return `(${bytes.length} bytes that are no text)`;
    }
  } catch {
    return "(not base64)";
  }
}
