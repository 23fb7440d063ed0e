// The page below an element as indented lines: our own markup whole, of Gradio's what a person can
// see, without its wrappers and classes. What only plots draw is left out.
(root) => {
  const KEPT = new RegExp('^(role|href|type|placeholder|title|alt|hidden|disabled|open|data-.+|' +
    'aria-(?!controls|labelledby|describedby|owns|activedescendant|value).+)$');
  const NOT_KEPT = /^data-(testid|mark|sveltekit|denied|close|chart|iframe|upload|lines|box|sweep|runs)|^aria-hidden/;
  const LEFT_OUT = 'script, style, template, canvas, img, svg, i:empty, b:empty, .ft-pulse, ' +
    '[data-testid=status-tracker], ' +
    '.ft-plot > *, .ft-samples > *, [id$=speed] > *, [id$=busy] > *, [id$=memory] > *';
  const PASSING = /[\d.,]+ (?=(ms|s|samples\/s)\b)/g;  // a width that no two runs share
  const PLAIN = ['div', 'span', 'label', 'section', 'fieldset', 'tbody', 'thead'];
  const told = (element) => {
    const parts = [...element.attributes]
      .filter(({name}) => KEPT.test(name) && !NOT_KEPT.test(name))
      .map(({name, value}) => (value ? ` ${name}="${value.slice(0, 120)}"` : ` ${name}`));
    const classes = [...element.classList].filter((name) => name.startsWith('ft-'));
    if (classes.length) parts.push(` class="${classes.join(' ')}"`);
    if (/^(?!html-)[a-z][a-z_-]*$/.test(element.id)) parts.unshift(` id="${element.id}"`);
    if (element.checked) parts.push(' checked');
    if (element.matches('input:not([type=checkbox], [type=radio]), textarea, select, output'))
      parts.push(` value="${element.value}"`);
    return parts.join('');
  };
  // The lines of a node; those below it are indented, or beside it if there is room.
  const outline = (node, ours) => {
    if (node.nodeType === Node.TEXT_NODE) {
      const text = node.textContent.replace(/\s+/g, ' ').trim().replace(PASSING, '0 ');
      return text ? [text.slice(0, 600)] : [];
    }
    if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return [];
    if (!ours && !node.checkVisibility({visibilityProperty: true})) return [];
    const inner = ours || node.classList.contains('html-container');
    const below = [...node.childNodes].flatMap((child) => outline(child, inner));
    const tag = node.tagName.toLowerCase(), attributes = told(node);
    if (!attributes && PLAIN.includes(tag)) return below;
    const head = `<${tag}${attributes}>`, line = [head, ...below].join(' ').replace(/ +/g, ' ');
    const flat = tag === 'tr' || !below.some((text) => text.startsWith(' '));
    if (flat && (tag === 'tr' || line.length < 90 || below.length < 2)) return [line];
    return [head, ...below.map((text) => ` ${text}`)];
  };
  return outline(root, false).join('\n');
}
