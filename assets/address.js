// Every tab, run, comparison and asked pair has an address that opens it again:
// `?tab=runs&run=ID`. The value of a tab's `elements.address` is the part behind the tab's name.
Object.assign(window.finetune, (() => {
  const names = ['tab', 'run', 'compare', 'search', 'sentence1', 'sentence2'];
  const parts = [...new URLSearchParams(location.search)].filter(([name]) => names.includes(name));
  const rest = String(new URLSearchParams(parts.filter(([name]) => name !== 'tab')));
  const first = Object.fromEntries(parts).tab ?? (rest ? 'runs' : 'train');
  const shown = {[first]: rest}, asked = {[first]: rest};
  let opened = first === 'train';

  const write = () => {
    const tab = document.querySelector('#tabs [role=tab][aria-selected=true]')?.dataset.tabId;
    if (!tab || !opened) return;
    const query = new URLSearchParams(location.search);
    for (const name of names) query.delete(name);
    if (tab !== 'train' || shown[tab]) query.set('tab', tab);
    for (const [name, value] of new URLSearchParams(shown[tab] ?? '')) query.set(name, value);
    if (String(query) === String(new URLSearchParams(location.search))) return;
    const text = String(query).replaceAll('%2C', ',');
    history.replaceState(history.state, '', location.pathname + (text && `?${text}`));
    // A Space's page is in a frame, whose address nobody sees.
    if (parent !== window) parent.postMessage({queryString: text}, 'https://huggingface.co');
  };
  const look = () => {
    // Gradio does not hear a click at once when it has drawn a tab.
    const tab = opened ? null : document.querySelector(`#tabs [role=tab][data-tab-id="${first}"]`);
    if (tab?.ariaSelected === 'false') tab.click();
    opened ||= tab?.ariaSelected === 'true';
    write();
  };
  new MutationObserver(look).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ['aria-selected']});

  return {
    // What a tab shows now.
    shows: (tab, query) => { shown[tab] = query; write(); },
    // What the address that the page was opened with, or a link, asks of a tab; nothing when asked again.
    ask: (tab, query) => { asked[tab] = query; },
    asked: (tab) => { const query = asked[tab] ?? ''; delete asked[tab]; return query; },
  };
})());
