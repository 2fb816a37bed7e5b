import { Fragment } from "preact";
import { pieces } from "../text";

/** A text of a table. A column is as wide as its longest piece, so that words stay whole. */
export function Words({ text }: { text: string }) {
  return (
    <>
      {pieces(text).map(({ text: piece, isWhole, breaks }, index) => (
        <Fragment key={index}>
          {isWhole ? piece : <span class="wrap">{piece}</span>}
          {breaks && <wbr />}
        </Fragment>
      ))}
    </>
  );
}
