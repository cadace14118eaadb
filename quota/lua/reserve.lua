-- KEYS: open, held, lapsed, limits. ARGV: base of the keys, id, lease in
-- microseconds; for each limit its terms, the amount and whether it is a shadow
-- and may go into debt (0 to 3). Gives 1 or 0 whether all was taken, and for each
-- limit: 1 or 0 whether it has room, the wait, used, window, reset.

lapse(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
local limits, out, taken = {}, {1}, {}
for i = 1, #KEYS - 3 do
  local id, kind, amount, p, at = terms(3, i, 2)
  local l = read(KEYS[i + 3], kind, amount, p)
  l.id, l.n, l.shadow = id, tonumber(ARGV[at + 1]), ARGV[at + 2] % 2 == 1
  local debt, money = math.floor(ARGV[at + 2] / 2) % 2 == 1, ARGV[at + 2] + 0 >= 4
  local n, ok, w = l.n, true, 0
  if n == 0 and money and l.u >= amount then n = 1 end
  if n > 0 or money then
    if n > amount then
      if not debt then ok, w = false, -1
      elseif l.u > EPS then ok, w = false, wait(l, l.u) end
    elseif l.u + n > amount + EPS then
      ok, w = false, wait(l, l.u + n - amount)
    end
  end
  l.ok, l.wait = ok, w
  if not ok and not l.shadow then out[1] = 0 end
  limits[i] = l
end
for i, l in ipairs(limits) do
  if out[1] == 1 then
    if l.kind == 's' then redis.call('HINCRBYFLOAT', l.key, slot(l, l.w), l.n) end
    l.u, l.r = l.u + l.n, l.r + l.n
    taken[i] = l.id .. ',' .. l.kind .. ',' .. string.format('%.0f', l.n) .. ',' .. string.format('%.0f', l.w or 0)
  end
  if out[1] == 1 or l.kind == 's' and l.found then write(l) end
  out[#out + 1] = l.ok and 1 or 0
  out[#out + 1] = math.ceil(l.wait - EPS)
  out[#out + 1] = math.ceil(l.u - EPS)
  out[#out + 1] = l.w or 0
  out[#out + 1] = math.ceil(reset(l) - EPS)
end
if out[1] == 1 then
  redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[2])
  redis.call('HSET', KEYS[2], ARGV[2], table.concat(taken, ';'))
  redis.call('PEXPIRE', KEYS[1], KEEP)
  redis.call('PEXPIRE', KEYS[2], KEEP)
end
return out
