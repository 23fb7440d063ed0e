// Lets the buttons in an HTML part (macros.html: tab_link) open a tab without asking the server.
element.addEventListener('click', (event) => {
  const link = event.target.closest('[data-tab]');
  if (!link) return;
  const tab = document.querySelector(`#tabs [role="tab"][data-tab-id="${link.dataset.tab}"]`);
  if (link.dataset.ask) finetune.ask(link.dataset.tab, link.dataset.ask);
  tab?.click();
  if (link.dataset.tab === 'train') document.querySelector('#new-run')?.click(); // with its form
  tab?.focus();
});
