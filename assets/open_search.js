// Opens the search that has just begun, once the answer that links to it is drawn.
() => {
  let left = 600;  // half a minute: a busy machine draws late
  const timer = setInterval(() => {
    const link = document.querySelector('#train-message [data-ask^="search="]');
    const begun = link && link.dataset.ask !== finetune.begun;
    if (begun || !--left) clearInterval(timer);
    if (!begun) return;
    finetune.begun = link.dataset.ask;
    link.click();
    scrollTo(0, 0);
  }, 50);
}
