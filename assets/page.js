// What Gradio's own parts lack for who uses no mouse or cannot see the page.
(() => {
  // Accordions are buttons that do not say whether they are open; a table that can be scrolled
  // must be reached to be scrolled, and one that cannot is no stop for Tab.
  const tend = () => {
    for (const fold of document.querySelectorAll('button.label-wrap')) {
      const open = String(fold.classList.contains('open'));
      if (fold.getAttribute('aria-expanded') !== open) fold.setAttribute('aria-expanded', open);
    }
    // The icons of the footer stand beside their names.
    for (const icon of document.querySelectorAll('footer img:not([alt=""])')) icon.alt = '';
    for (const box of document.querySelectorAll('.ft-rows:not([role]), #card table')) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls !== box.hasAttribute('tabindex')) {
        if (scrolls) box.tabIndex = 0; else box.removeAttribute('tabindex');
      }
    }
    for (const name of document.querySelectorAll('.block:not([title]) .info-text > code:first-child')) {
      name.closest('.block').title = name.textContent;
    }
    search();
    differ();
    refused();
    const [gone, refuge] = focused ?? [];
    const next = gone && document.querySelector(refuge);
    if (next?.checkVisibility() && !document.querySelector(gone)?.checkVisibility()) {
      const now = document.activeElement;
      if (now === document.body || !now.checkVisibility()) next.focus({preventScroll: true});
      focused = null;
    }
  };
  // Parts that give way to others, and what gets the focus when one was in them.
  const refuges = [['#setup', '#new-run'], ['#new-run', '#train'], ['#all-runs', '#all-runs-again'],
    ['#run-head', '#runs-table .ft-open']];
  let focused = null;
  document.addEventListener('focusin', (event) => {
    focused = refuges.find(([part]) => event.target.closest?.(part)) ?? null;
  });
  let due = 0;
  const soon = () => { due ||= setTimeout(() => { due = 0; tend(); }, 150); };
  document.addEventListener('click', (event) => {
    if (event.target.closest?.('#new-run')) empty(document.querySelector('#find-knob :is(input, textarea)'));
    if (event.target.closest?.('#train, #begin-search')) for (const one of refusals('')) one.hidden = false;
  });
  for (const what of ['click', 'focusin']) document.addEventListener(what, soon);
  addEventListener('resize', soon);
  // The root, since Gradio may run this before there is a body, or after the page was loaded.
  new MutationObserver(soon).observe(document.documentElement, {childList: true, subtree: true});
  soon();
  // A chooser's long list scrolls, so Tab would go to it, which closes it, and the focus is lost.
  // Gradio would open the list again after Tab has left its chooser.
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Tab') return;
    if (event.target.matches('[role=combobox]')) event.stopPropagation();
    for (const list of document.querySelectorAll('ul[role=listbox]')) list.tabIndex = -1;
  }, true);
  // Arrows go from tab to tab (https://www.w3.org/WAI/ARIA/apg/patterns/tabs/).
  document.addEventListener('keydown', (event) => {
    const tab = event.target.closest?.('[role=tab]');
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!tab || !step || event.ctrlKey || event.altKey || event.metaKey) return;
    const all = [...tab.closest('[role=tablist]').querySelectorAll('[role=tab]')];
    go(event, all, tab, step);
  });
  const go = (event, all, from, step) => {
    const next = all[(all.indexOf(from) + step + all.length) % all.length];
    event.preventDefault();
    next.focus();
    next.click();
  };
  // Arrows go from choice to choice: each of Gradio's has a name of its own, so the browser takes
  // them for groups of one.
  document.addEventListener('keydown', (event) => {
    const choice = event.target.closest?.('fieldset input[type=radio]');
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!choice || !step) return;
    go(event, [...choice.closest('fieldset').querySelectorAll('input[type=radio]')], choice, step);
  });

  // The form: a box hides the settings that do not match, and opens Advanced for those that do; what
  // differs from the preset says so, and what was refused is marked.
  const knobs = (within) => [...document.querySelectorAll(`${within} [id^="knob-"]`)];
  const plainly = (text) => text.toLowerCase().replaceAll('_', ' ');
  const search = () => {
    const box = document.querySelector('#find-knob :is(input, textarea)');
    const status = document.querySelector('#knobs-shown p');
    if (!box || !status) return;
    const words = plainly(box.value).split(/\s+/).filter(Boolean);
    const matches = (text) => words.every((word) => plainly(text).includes(word));
    const all = knobs('#setup'), left = all.filter((knob) => matches(knob.textContent));
    for (const knob of all) knob.toggleAttribute('data-left-out', !left.includes(knob));
    const now = `${left.length} / ${all.length}`;
    const count = status.querySelector('b') || status.appendChild(document.createElement('b'));
    if (count.textContent !== now) count.textContent = now;
    status.hidden = !words.length;
    const elsewhere = JSON.parse(status.dataset.elsewhere).some(matches);
    document.querySelector('#knobs-elsewhere')?.toggleAttribute('data-shown', words.length && elsewhere);
    if (words.length) unfold(); // what is folded is not in the document
  };
  const unfold = () => {
    const folds = '#advanced > button.label-wrap, #advanced .ft-knobs > button.label-wrap';
    for (const fold of document.querySelectorAll(folds)) if (!fold.classList.contains('open')) fold.click();
  };
  const boxOf = (field) => field.startsWith('search-') ? field : `knob-${field}`;
  const refused = () => {
    const of = (where) => [...document.querySelectorAll(`${where} [data-field]:not([hidden])`)].map(
      (problem) => [boxOf(problem.dataset.field), problem]);
    const pressed = new Map(of('#train-message')), first = pressed.values().next().value;
    const problems = new Map([...of('#costs'), ...pressed]);
    if ([...pressed.keys()].some((id) => !document.getElementById(id))) unfold();
    for (const knob of [...knobs(''), ...document.querySelectorAll('#search [id^="search-"]')]) {
      const problem = problems.get(knob.id), box = knob.querySelector('input, textarea');
      const text = problem?.querySelector('span').textContent ?? '';
      const warns = problem?.dataset.warns !== undefined;
      if (!box || (text === (knob.dataset.problem ?? '') && warns === ('warns' in knob.dataset))) continue;
      knob.toggleAttribute('data-warns', warns);
      if (!problem) {
        delete knob.dataset.problem;
        for (const name of ['aria-invalid', 'aria-describedby']) box.removeAttribute(name);
        continue;
      }
      problem.id = `problem-${problem.dataset.field}`;
      knob.dataset.problem = text;
      box.setAttribute('aria-invalid', String(!warns));
      box.setAttribute('aria-describedby', problem.id);
      if (problem === first) {
        setTimeout(() => { box.scrollIntoView({block: 'center'}); box.focus(); }, 100);
      }
    }
  };
  const differ = () => {
    const chosen = document.querySelector('#preset input')?.value;
    const kept = [...document.querySelectorAll('[data-preset]')].find((one) => one.textContent === chosen);
    if (!kept) return;
    const preset = JSON.parse(kept.dataset.preset);
    const word = document.querySelector('#preset-word p').textContent;
    for (const one of knobs('')) {
      const name = one.id.slice(5), box = one.querySelector('input, textarea');
      if (!box || !(name in preset)) continue;
      const given = box.type === 'checkbox' ? box.checked : box.value, value = preset[name];
      // What stands for a value that is no amount: a choice, or what an empty box says.
      const text = document.querySelector(`[data-word-of=${name}][data-value="${value}"]`)?.textContent
        ?? (value === '' ? box.placeholder || '\u2013' : String(value));
      const same = given === text || given === value
        || (typeof value === 'number' && given !== '' && Number(given) === value);
      const says = same ? '' : `\u25cf ${word} ${text}`;
      if ((one.dataset.differs ?? '') === says) continue;
      if (says) one.dataset.differs = says; else delete one.dataset.differs;
    }
  };
  // What was refused is not said any more of a box that is typed in, until it is sent again.
  const refusals = (field) => document.querySelectorAll(`#train-message li[data-field${field}]`);
  document.addEventListener('input', (event) => {
    const field = event.target.closest?.('[data-problem]')?.id.replace('knob-', '');
    for (const one of field ? refusals(`=${field}`) : []) one.hidden = true;
    if (event.target.closest?.('#find-knob')) search();
    soon();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !event.target.value || !event.target.closest?.('#find-knob')) return;
    empty(event.target);
  });
  const empty = (box) => {
    if (!box?.value) return;
    box.value = '';
    box.dispatchEvent(new Event('input', {bubbles: true}));
  };
})();
// What the browser alone does in events of the tabs: `js=` and `js_on_load=` in finetune/ui/tabs.
window.finetune = (() => {
  const keep = {__type__: 'update'}; // an output of the event that stays as it is
  // An answer is awaited: it stands where the answer will be, or what the answer clears.
  const pending = '<div class="ft-bar ft-pending" aria-hidden="true"><i class="ft-unknown"></i></div>';

  // Data. The same pairs in both choosers, and nothing left of the former source. Gradio tells of a
  // choice also when a chooser is merely left: then the other one has the same already.
  const otherPairs = (pairs, other, blank) =>
    pairs === other ? [keep, keep, ...blank.map(() => keep)] : [pairs, pending, ...blank];

  // A number as it is written in English, with the separators of the page's language.
  const number = (text) => {
    const marks = document.querySelector('#separators')?.dataset;
    return marks ? text.replace(/[.,]/g, (mark) => mark === ',' ? marks.group : marks.decimal) : text;
  };

  return {otherPairs, number, pending};
})();
// Tells the server the language in which Gradio shows the page, as it writes it into the document.
(() => {
  // In a frame of another site (a Space) a cookie is kept only with these attributes.
  const framed = 'SameSite=None; Secure; Partitioned';
  const attributes = location.protocol === 'https:' ? framed : 'SameSite=Lax';
  const tell = () => {
    const language = document.documentElement.lang;
    document.cookie = `finetune-language=${language}; path=/; ${attributes}`;
    window.dispatchEvent(new Event('resize'));  // the tabs are measured again, in their language
  };
  new MutationObserver(tell).observe(
    document.documentElement, {attributes: true, attributeFilter: ['lang']});
  tell();
})();
